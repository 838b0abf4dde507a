"""What the files of a LLaVA checkpoint say: architecture, tensors, preprocessing, conversation.

An optional `tango.json` beside config.json says what config.json has no place for:

    {"chat": {"opening": "a", "after_clip": "b", "closing": "c"}, "sinks": [28], "note": "d"}

`chat` is the text around clip and question (`chat.py`), `sinks` are positions of the token grid
that attract attention in every clip, `note` is shown with every result. Any key may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import LlavaOnevisionConfig

from tango_core.models.checkpoints.directory import ArchitectureError, Checkpoint
from tango_core.models.language.chat import QWEN_1_5, ChatFormat, chat_format
from tango_core.models.llava.original import ORIGINAL_MODEL_TYPE, original_config

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


@dataclass(frozen=True)
class Extras:
    """Content of the optional tango.json of a checkpoint."""

    chat: ChatFormat
    sinks: tuple[int, ...] | None
    note: str


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
    if model_type == ORIGINAL_MODEL_TYPE:
        config = original_config(checkpoint)
    elif model_type == "llava_onevision":
        config = LlavaOnevisionConfig.from_dict(content)
    else:
        raise ArchitectureError(
            f"{where} holds a {model_type!r} model, not 'llava_onevision' (llava-hf) or "
            f"{ORIGINAL_MODEL_TYPE!r} (lmms-lab); choose another model.name or give a checkpoint "
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


def read_extras(checkpoint: Checkpoint, default_chat: ChatFormat = QWEN_1_5) -> Extras:
    """Content of tango.json, or its defaults.

    Args:
        checkpoint: Where the file may be.
        default_chat: Conversation of a checkpoint whose file names none.

    Raises:
        ValueError: If it has unknown keys or wrong values.
    """
    content = checkpoint.read_json("tango.json") or {}
    unknown = sorted(set(content) - {"chat", "sinks", "note"})
    if unknown:
        raise ValueError(
            f"{checkpoint.source}/tango.json: unknown key {unknown[0]!r}; "
            "known are chat, sinks, note"
        )
    sinks = content.get("sinks")
    return Extras(
        chat=chat_format(content.get("chat"), checkpoint.source, default_chat),
        sinks=None if sinks is None else tuple(int(sink) for sink in sinks),
        note=str(content.get("note", "")),
    )


def read_normalisation(
    checkpoint: Checkpoint,
    default_mean: tuple[float, ...] = _SIGLIP,
    default_std: tuple[float, ...] = _SIGLIP,
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Factor, mean and standard deviation per colour; the defaults where the files are silent."""
    nested = checkpoint.read_json("processor_config.json") or {}
    content: dict[str, Any] = (
        checkpoint.read_json("video_preprocessor_config.json")
        or checkpoint.read_json("preprocessor_config.json")
        or nested.get("video_processor")
        or nested.get("image_processor")
        or {}
    )
    mean = content.get("image_mean") or default_mean
    std = content.get("image_std") or default_std
    return float(content.get("rescale_factor") or 1 / 255), tuple(mean), tuple(std)


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
