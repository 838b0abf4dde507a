"""What the files of a Qwen3-VL checkpoint say: architecture, tensors, sizes, normalisation."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from transformers import Qwen3VLConfig

from tango_core.local_files import read_text
from tango_core.models.checkpoints.directory import ArchitectureError, Checkpoint
from tango_core.models.checkpoints.normalisation import Normalisation, read_normalisation
from tango_core.models.extras import Extras, read_extras
from tango_core.models.language.chat import QWEN2_5_VL
from tango_core.models.patches import PatchLayout

VISION = "model.visual."
LANGUAGE = ("model.language_model.", "lm_head.")

_USER = "<|im_start|>user\n"
# The chat template has no system turn unless one is given.
_CHAT = replace(QWEN2_5_VL, opening=_USER)
SYSTEM_TURN = QWEN2_5_VL.opening.removesuffix(_USER)
# How a Thinking checkpoint's template opens a reply; in JSON the line break is written out.
_THINKING = re.compile(r"<\|im_start\|>assistant(?:\\+n|\n)<think>")


def read_qwen3_config(checkpoint: Checkpoint) -> Qwen3VLConfig:
    """Configuration of a dense Qwen3-VL checkpoint.

    Raises:
        ArchitectureError: If it is of another architecture.
        ValueError: If vision and language do not fit.
    """
    content = checkpoint.config()
    where = f"{checkpoint.setting} {checkpoint.source}"
    kind = content.get("model_type")
    if kind == "qwen3_vl_moe":
        raise ArchitectureError(
            f"{where} holds a 'qwen3_vl_moe' model, a mixture of experts, which is not supported; "
            "give a dense Qwen3-VL checkpoint (2B, 4B, 8B, 32B)"
        )
    if kind != "qwen3_vl":
        raise ArchitectureError(
            f"{where} holds a {kind!r} model, not 'qwen3_vl'; "
            "choose another model.name or give a Qwen3-VL checkpoint"
        )
    config = Qwen3VLConfig.from_dict(content)
    vision: Any = config.vision_config
    text: Any = config.text_config
    if vision.out_hidden_size != text.hidden_size:
        raise ValueError(
            f"{where}: vision_config.out_hidden_size is {vision.out_hidden_size}, but the language "
            f"model has width {text.hidden_size}; correct config.json"
        )
    if not 0 < num_companions(config) <= text.num_hidden_layers:
        raise ValueError(
            f"{where}: vision_config.deepstack_visual_indexes must name 1 to "
            f"{text.num_hidden_layers} blocks, as the language model has layers, got "
            f"{num_companions(config)}; correct config.json"
        )
    blocks = sorted(set(vision.deepstack_visual_indexes))
    if len(blocks) < num_companions(config) or not 0 <= blocks[0] <= blocks[-1] < vision.depth:
        raise ValueError(
            f"{where}: vision_config.deepstack_visual_indexes must be different blocks from 0 to "
            f"{vision.depth - 1}, got {vision.deepstack_visual_indexes}; correct config.json"
        )
    return config


def num_companions(config: Qwen3VLConfig) -> int:
    """DeepStack rows of a token."""
    vision: Any = config.vision_config
    return len(vision.deepstack_visual_indexes)


def read_patch_layout(config: Qwen3VLConfig) -> PatchLayout:
    """Sizes of patches and tokens."""
    vision: Any = config.vision_config
    return PatchLayout(vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)


def read_qwen3_extras(checkpoint: Checkpoint) -> Extras:
    """Content of tango.json; the conversation is Qwen3-VL's where the file names none.

    Raises:
        ValueError: If the file is wrong, or this is a Thinking checkpoint and it names none.
    """
    extras = read_extras(checkpoint, _CHAT)
    if extras.chat is _CHAT and _THINKING.search(_template(checkpoint)):
        raise ValueError(
            f"{checkpoint.setting} {checkpoint.source} is a Thinking checkpoint, which reasons "
            "before it answers, longer than the replies that protocols allow; give the Instruct "
            "one, or state chat in tango.json, with <think> at the end of closing"
        )
    return extras


def _template(checkpoint: Checkpoint) -> str:
    """The chat template, wherever it is; "" for none."""
    stated = [
        str((checkpoint.read_json(name) or {}).get("chat_template", ""))
        for name in ("tokenizer_config.json", "chat_template.json")
    ]
    file = checkpoint.directory / "chat_template.jinja"
    return "\n".join([*stated, read_text(file) if file.is_file() else ""])


def read_half_normalisation(checkpoint: Checkpoint) -> Normalisation:
    """How pixels are normalised; to [-1, 1] where the files do not say."""
    return read_normalisation(checkpoint, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def vision_half(name: str) -> str | None:
    """Name of a tensor in the tower; `None` for the language model's, an unknown one as it is."""
    return _half(name, (VISION,), VISION)


def language_half(name: str) -> str | None:
    """Name of a tensor in the language half; `None` for the tower's, an unknown one as it is."""
    return _half(name, LANGUAGE, "model.")


def _half(name: str, own: tuple[str, ...], removed: str) -> str | None:
    """Tell the halves apart; the hub and the modules of transformers 5 have the same names."""
    if name.startswith((VISION, *LANGUAGE)) and not name.startswith(own):
        return None
    return name.removeprefix(removed)
