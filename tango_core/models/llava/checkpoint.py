"""What the files of a LLaVA checkpoint say: architecture, tensors, normalisation, conversation."""

from __future__ import annotations

import re
from collections.abc import Callable

from transformers import LlavaOnevisionConfig

from tango_core.models.checkpoints.directory import ArchitectureError, Checkpoint
from tango_core.models.checkpoints.normalisation import Normalisation, read_normalisation
from tango_core.models.extras import Extras, read_extras
from tango_core.models.language.chat import QWEN_1_5
from tango_core.models.llava.original import (
    ORIGINAL_ARCHITECTURE,
    is_original,
    original_config,
)

VISION = ("model.vision_tower.", "model.multi_modal_projector.")
LANGUAGE = ("model.language_model.", "model.image_newline", "lm_head.")

# Names in original checkpoints, then in older ones of llava-hf -> names in those written by
# transformers 5, applied in this order.
_RENAMES = (
    (re.compile(r"^model\.vision_tower\.vision_tower\."), "model.vision_tower."),
    (re.compile(r"^model\.mm_projector\.0\."), "model.multi_modal_projector.linear_1."),
    (re.compile(r"^model\.mm_projector\.2\."), "model.multi_modal_projector.linear_2."),
    (re.compile(r"^model\.(embed_tokens|layers|norm)\."), r"model.language_model.\1."),
    (re.compile(r"^language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^language_model\.model\."), "model.language_model."),
    (re.compile(r"^(vision_tower|multi_modal_projector|image_newline)"), r"model.\1"),
    (re.compile(r"^model\.vision_tower\.vision_model\."), "model.vision_tower."),
)

_SIGLIP = (0.5, 0.5, 0.5)


def read_config(checkpoint: Checkpoint) -> LlavaOnevisionConfig:
    """Configuration of a LLaVA-OneVision or LLaVA-Video checkpoint, original or converted.

    Raises:
        ArchitectureError: If it is of another architecture.
        ValueError: If it is of a variant that this module does not compute.
        FileNotFoundError: If an original checkpoint names a vision tower that is not there.
    """
    content = checkpoint.config()
    where = f"{checkpoint.setting} {checkpoint.source}"
    model_type = content.get("model_type")
    if is_original(content):
        config = original_config(checkpoint)
    elif model_type == "llava_onevision":
        config = LlavaOnevisionConfig.from_dict(content)
    else:
        raise ArchitectureError(
            f"{where} holds a {model_type!r} model, not 'llava_onevision' (llava-hf) or "
            f"{ORIGINAL_ARCHITECTURE} (lmms-lab); choose another model.name or give a checkpoint "
            "of LLaVA-OneVision or LLaVA-Video"
        )
    if config.vision_config.model_type != "siglip_vision_model":
        raise ValueError(
            f"{where} has a {config.vision_config.model_type!r} tower; only SigLIP is supported"
        )
    if config.vision_feature_select_strategy != "full":
        raise ValueError(
            f"{where}: vision_feature_select_strategy must be 'full' for SigLIP, "
            f"got {config.vision_feature_select_strategy!r}; correct config.json"
        )
    return config


def read_llava_extras(checkpoint: Checkpoint) -> Extras:
    """Content of tango.json; the conversation is LLaVA's where the file names none."""
    return read_extras(checkpoint, QWEN_1_5)


def read_siglip_normalisation(checkpoint: Checkpoint) -> Normalisation:
    """How pixels are normalised; SigLIP's way where the files do not say."""
    return read_normalisation(checkpoint, _SIGLIP, _SIGLIP)


def half_of(prefixes: tuple[str, ...]) -> Callable[[str], str | None]:
    """Map names of either layout to names in one half, those of the other half to `None`.

    A name of neither half is passed through, so that loading reports it as unknown.
    """

    def rename(name: str) -> str | None:
        for pattern, replacement in _RENAMES:
            name = pattern.sub(replacement, name)
        if name.startswith(VISION + LANGUAGE) and not name.startswith(prefixes):
            return None
        return name.removeprefix("model.")

    return rename
