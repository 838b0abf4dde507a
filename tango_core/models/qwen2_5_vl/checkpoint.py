"""What the files of a Qwen2.5-VL checkpoint say: architecture, tensors, sizes, normalisation."""

from __future__ import annotations

import re
from typing import Any

from transformers import Qwen2_5_VLConfig

from tango_core.models.checkpoints.directory import ArchitectureError, Checkpoint
from tango_core.models.checkpoints.normalisation import Normalisation, read_normalisation
from tango_core.models.extras import Extras, read_extras
from tango_core.models.language.chat import QWEN2_5_VL
from tango_core.models.patches import PatchLayout

VISION = "model.visual."
LANGUAGE = ("model.language_model.", "lm_head.")

_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

# Names in hub checkpoints and in what save_pretrained writes -> names in the modules of
# transformers 5, applied in this order.
_RENAMES = (
    (re.compile(r"^visual\."), "model.visual."),
    (re.compile(r"^model\.(?!language_model\.|visual\.)"), "model.language_model."),
)


def read_qwen_config(checkpoint: Checkpoint) -> Qwen2_5_VLConfig:
    """Configuration of a Qwen2.5-VL checkpoint, flat as on the hub or nested.

    Raises:
        ArchitectureError: If it is of another architecture.
        ValueError: If vision and language do not fit.
    """
    content = checkpoint.config()
    where = f"{checkpoint.setting} {checkpoint.source}"
    if content.get("model_type") != "qwen2_5_vl":
        raise ArchitectureError(
            f"{where} holds a {content.get('model_type')!r} model, not 'qwen2_5_vl'; "
            "choose another model.name or give a Qwen2.5-VL checkpoint"
        )
    config = Qwen2_5_VLConfig.from_dict(content)
    vision: Any = config.vision_config
    text: Any = config.text_config
    if vision.out_hidden_size != text.hidden_size:
        raise ValueError(
            f"{where}: vision_config.out_hidden_size is {vision.out_hidden_size}, but the language "
            f"model has width {text.hidden_size}; correct config.json"
        )
    return config


def read_patch_layout(config: Qwen2_5_VLConfig) -> PatchLayout:
    """Sizes of patches and tokens."""
    vision: Any = config.vision_config
    return PatchLayout(vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)


def read_qwen_extras(checkpoint: Checkpoint) -> Extras:
    """Content of tango.json; the conversation is Qwen2.5-VL's where the file names none."""
    return read_extras(checkpoint, QWEN2_5_VL)


def read_clip_normalisation(checkpoint: Checkpoint) -> Normalisation:
    """How pixels are normalised; CLIP's way where the files do not say."""
    return read_normalisation(checkpoint, _CLIP_MEAN, _CLIP_STD)


def vision_half(name: str) -> str | None:
    """Name of a tensor in the tower; `None` for the language model's, an unknown one as it is."""
    return _half(name, (VISION,), VISION)


def language_half(name: str) -> str | None:
    """Name of a tensor in the language half; `None` for the tower's, an unknown one as it is."""
    return _half(name, LANGUAGE, "model.")


def _half(name: str, own: tuple[str, ...], removed: str) -> str | None:
    """Bring a name to today's layout, and tell the halves apart."""
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    if name.startswith((VISION, *LANGUAGE)) and not name.startswith(own):
        return None
    return name.removeprefix(removed)
