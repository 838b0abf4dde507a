"""Configuration of InternVL checkpoints as their authors publish them, `internvl_chat`.

Their modelling code travels with the weights and is never run here. What their config.json says is
brought to the fields of the same architecture in transformers; what this project does not compute
is refused.
"""

from __future__ import annotations

from typing import Any

from transformers import InternVLConfig, InternVLVisionConfig

from tango_core.models.checkpoints.directory import Checkpoint

ORIGINAL_MODEL_TYPE = "internvl_chat"

# Settings of the original code -> the only value that is computed here, and the default.
_KNOWN: dict[str, Any] = {"select_layer": -1, "downsample_ratio": 0.5, "ps_version": "v2"}

# Fields of the original tower -> of the one in transformers.
_VISION = {
    "attention_dropout": "attention_dropout",
    "hidden_act": "hidden_act",
    "hidden_size": "hidden_size",
    "image_size": "image_size",
    "intermediate_size": "intermediate_size",
    "layer_norm_eps": "layer_norm_eps",
    "norm_type": "norm_type",
    "num_attention_heads": "num_attention_heads",
    "num_channels": "num_channels",
    "num_hidden_layers": "num_hidden_layers",
    "patch_size": "patch_size",
    "qk_normalization": "use_qk_norm",
    "qkv_bias": "attention_bias",
}


def original_config(checkpoint: Checkpoint) -> InternVLConfig:
    """Configuration of an original checkpoint, as that of the architecture in transformers.

    Raises:
        ValueError: If it is of a variant that this project does not compute.
    """
    content = checkpoint.config()
    for key, known in _KNOWN.items():
        if content.get(key, known) != known:
            raise ValueError(
                f"{checkpoint.setting} {checkpoint.source}: {key} of config.json is "
                f"{content[key]!r}, but only {known!r} is supported; use another checkpoint"
            )
    vision = content.get("vision_config")
    text = content.get("llm_config")
    if not isinstance(vision, dict) or not isinstance(text, dict):
        raise ValueError(
            f"{checkpoint.setting} {checkpoint.source}: config.json must hold vision_config and "
            "llm_config, as InternVL's authors publish them; copy the checkpoint again"
        )
    size = content.get("force_image_size")
    if size not in (None, vision.get("image_size", size)):
        raise ValueError(
            f"{checkpoint.setting} {checkpoint.source}: force_image_size is {size}, but the tower "
            f"was stored for {vision['image_size']} pixels; use another checkpoint"
        )
    tower = {new: vision[old] for old, new in _VISION.items() if old in vision}
    return InternVLConfig(
        # No normalisation behind the last layer.
        vision_config=InternVLVisionConfig(**tower, use_mean_pooling=True),
        text_config=text,
        downsample_ratio=_KNOWN["downsample_ratio"],
        tie_word_embeddings=bool(text.get("tie_word_embeddings", False)),
    )
