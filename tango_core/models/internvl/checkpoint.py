"""What the files of an InternVL checkpoint say: architecture, tensors, normalisation."""

from __future__ import annotations

import re
from typing import Any

from transformers import InternVLConfig

from tango_core.models.checkpoints.directory import ArchitectureError, Checkpoint
from tango_core.models.checkpoints.normalisation import Normalisation, read_normalisation
from tango_core.models.extras import Extras, read_extras
from tango_core.models.internvl.original import ORIGINAL_MODEL_TYPE, original_config
from tango_core.models.language.chat import INTERNVL2_5

VISION = ("model.vision_tower.", "model.multi_modal_projector.")
LANGUAGE = ("model.language_model.", "lm_head.")

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)

# Language models whose layers are known to be computed right; InternVL3 has Qwen2.5.
_TEXT_MODELS = ("qwen3", "qwen2")

# Names in original checkpoints, then in older ones for transformers -> names in the modules of
# transformers 5, applied in this order.
_RENAMES = (
    (re.compile(r"^(vision_model\.embeddings)\.class_embedding$"), r"\1.cls_token"),
    (re.compile(r"^(vision_model\.embeddings)\.position_embedding$"), r"\1.position_embeddings"),
    (
        re.compile(r"^(vision_model\.embeddings)\.patch_embedding\."),
        r"\1.patch_embeddings.projection.",
    ),
    (re.compile(r"^(vision_model\.encoder)\.layers\."), r"\1.layer."),
    (re.compile(r"^(vision_model\..+)\.attn\.proj\."), r"\1.attention.projection_layer."),
    (re.compile(r"^(vision_model\..+)\.attn\."), r"\1.attention."),
    (re.compile(r"^(vision_model\..+)\.norm1\."), r"\1.layernorm_before."),
    (re.compile(r"^(vision_model\..+)\.norm2\."), r"\1.layernorm_after."),
    (re.compile(r"^(vision_model\..+)\.ls([12])$"), r"\1.lambda_\2"),
    (re.compile(r"^vision_model\."), "vision_tower."),
    (re.compile(r"^mlp1\.0\."), "multi_modal_projector.layer_norm."),
    (re.compile(r"^mlp1\.1\."), "multi_modal_projector.linear_1."),
    (re.compile(r"^mlp1\.3\."), "multi_modal_projector.linear_2."),
    (re.compile(r"^language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^language_model\.model\."), "model.language_model."),
    (re.compile(r"^(vision_tower|multi_modal_projector)\."), r"model.\1."),
)
# The original tower stores queries, keys and values as one matrix.
_FUSED = re.compile(r"(.+\.attention)\.qkv\.(weight|bias)")


def read_internvl_config(checkpoint: Checkpoint) -> InternVLConfig:
    """Configuration of an InternVL checkpoint, original or for transformers.

    Raises:
        ArchitectureError: If it is of another architecture.
        ValueError: If it is of a variant that this project does not compute.
    """
    content = checkpoint.config()
    where = f"{checkpoint.setting} {checkpoint.source}"
    model_type = content.get("model_type")
    if model_type == ORIGINAL_MODEL_TYPE:
        config = original_config(checkpoint)
    elif model_type == "internvl":
        config = InternVLConfig.from_dict(_with_tying(content))
    else:
        raise ArchitectureError(
            f"{where} holds a {model_type!r} model, not 'internvl' (transformers) or "
            f"{ORIGINAL_MODEL_TYPE!r} (OpenGVLab); choose another model.name or give an InternVL "
            "checkpoint"
        )
    text: Any = config.text_config
    if text.model_type not in _TEXT_MODELS:
        raise ValueError(
            f"{where} has a {text.model_type!r} language model; only {' and '.join(_TEXT_MODELS)} "
            "are supported, use a dense InternVL3.5 checkpoint"
        )
    _raise_unless_plain(where, config)
    return config


def read_internvl_extras(checkpoint: Checkpoint) -> Extras:
    """Content of tango.json; the conversation is InternVL's where the file names none."""
    return read_extras(checkpoint, INTERNVL2_5)


def read_imagenet_normalisation(checkpoint: Checkpoint) -> Normalisation:
    """How pixels are normalised; ImageNet's way where the files do not say."""
    return read_normalisation(checkpoint, _IMAGENET_MEAN, _IMAGENET_STD)


def tower_grid(config: InternVLConfig) -> tuple[int, int]:
    """(H, W) patches of a frame."""
    vision: Any = config.vision_config
    height, width = (
        side // patch for side, patch in zip(vision.image_size, vision.patch_size, strict=True)
    )
    return height, width


def merge_of(config: InternVLConfig) -> int:
    """Patches of a token along each axis."""
    ratio: float = config.downsample_ratio
    return round(1 / ratio)


def vision_half(name: str) -> str | tuple[str, ...] | None:
    """Name, or names, of a tensor in the vision half.

    `None` for the language model's, an unknown one as it is.
    """
    own = _half(name, VISION)
    fused = None if own is None else _FUSED.fullmatch(own)
    if fused is None:
        return own
    return tuple(f"{fused[1]}.{part}_proj.{fused[2]}" for part in "qkv")


def language_half(name: str) -> str | None:
    """Name of a tensor in the language half; `None` for the tower's, an unknown one as it is."""
    return _half(name, LANGUAGE)


def _half(name: str, own: tuple[str, ...]) -> str | None:
    """Bring a name to today's layout, and tell the halves apart."""
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    if name.startswith(VISION + LANGUAGE) and not name.startswith(own):
        return None
    return name.removeprefix("model.")


def _with_tying(content: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the text model's word on tied embeddings, where it has no own.

    The class of transformers takes them as tied where the top level is silent; older releases wrote
    only what the text model says.
    """
    own = (content.get("text_config") or {}).get("tie_word_embeddings", False)
    return {"tie_word_embeddings": own, **content}


def _raise_unless_plain(where: str, config: InternVLConfig) -> None:
    """Refuse settings of the tower and the shuffle that this project does not compute."""
    vision: Any = config.vision_config
    grid, merge = tower_grid(config), merge_of(config)
    checks = (
        ("vision_feature_layer", config.vision_feature_layer, -1),
        ("vision_feature_select_strategy", config.vision_feature_select_strategy, "default"),
        ("use_mask_token of vision_config", vision.use_mask_token, False),
    )
    for name, value, known in checks:
        if value != known:
            raise ValueError(
                f"{where}: {name} of config.json is {value!r}, but only {known!r} is supported; "
                "use another checkpoint"
            )
    if grid[0] != grid[1] or grid[0] % merge or merge * config.downsample_ratio != 1:
        raise ValueError(
            f"{where}: {grid[0]} x {grid[1]} patches cannot be shuffled by downsample_ratio "
            f"{config.downsample_ratio:g}; correct config.json"
        )
