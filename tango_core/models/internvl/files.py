"""Reads InternVL checkpoints in the authors' layout or in that of transformers.

The authors' modelling code (`internvl_chat`) in the checkpoint is never run. Their config.json is
converted to the configuration of transformers; unsupported settings are rejected.
"""

from __future__ import annotations

import re
from typing import Any

from transformers import InternVLConfig, InternVLVisionConfig

from tango_core.errors import InputError
from tango_core.models.checkpoints.directory import ArchitectureError, Checkpoint
from tango_core.models.checkpoints.weights import Rename
from tango_core.models.family import Half, ModelRequest
from tango_core.models.files import FamilyFiles, raise_unless_supported
from tango_core.models.internvl.family import InternVLOptions
from tango_core.models.language.chat import INTERNVL2_5
from tango_core.video import FrameSpec

_ORIGINAL_MODEL_TYPE = "internvl_chat"
# Supported language models; InternVL3 has Qwen2.5.
_TEXT_MODELS = ("qwen3", "qwen2")
# lmms-eval allows a frame 64 // frames tiles, at most 12.
_TILES_OF_A_CLIP, _MOST_TILES = 64, 12
# The original tower stores queries, keys and values as one matrix.
_FUSED = re.compile(r"(.+\.attention)\.qkv\.(weight|bias)")

# Settings of the original code, with the only supported value, which is also the default.
_KNOWN: dict[str, Any] = {"select_layer": -1, "downsample_ratio": 0.5, "ps_version": "v2"}

# Fields of the original tower's configuration, and their names in transformers.
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


class InternVLFiles(FamilyFiles):
    """Names of tensors in original checkpoints, in older ones for transformers, and today's."""

    chat = INTERNVL2_5
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)
    renames = (
        (re.compile(r"^(vision_model\.embeddings)\.class_embedding$"), r"\1.cls_token"),
        (
            re.compile(r"^(vision_model\.embeddings)\.position_embedding$"),
            r"\1.position_embeddings",
        ),
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

    def read_config(self, checkpoint: Checkpoint) -> Any:
        """See `FamilyFiles.read_config`."""
        content = checkpoint.config()
        where = f"{checkpoint.setting} {checkpoint.source}"
        model_type = content.get("model_type")
        if model_type == _ORIGINAL_MODEL_TYPE:
            config = _original_config(checkpoint)
        elif model_type == "internvl":
            # transformers ties embeddings if the top level has no setting, but older releases
            # only wrote the setting of the text model.
            tied = (content.get("text_config") or {}).get("tie_word_embeddings", False)
            config = InternVLConfig.from_dict({"tie_word_embeddings": tied, **content})
        else:
            raise ArchitectureError(
                f"{where} holds a {model_type!r} model, not 'internvl' (transformers) or "
                f"{_ORIGINAL_MODEL_TYPE!r} (OpenGVLab); choose another model.name or give an "
                "InternVL checkpoint"
            )
        text: Any = config.text_config
        if text.model_type not in _TEXT_MODELS:
            raise InputError(
                f"{where} has a {text.model_type!r} language model; only "
                f"{' and '.join(_TEXT_MODELS)} are supported, use a dense InternVL3.5 checkpoint"
            )
        vision: Any = config.vision_config
        strategy = config.vision_feature_select_strategy
        raise_unless_supported(
            checkpoint,
            (
                ("vision_feature_layer", config.vision_feature_layer, -1),
                ("vision_feature_select_strategy", strategy, "default"),
                ("use_mask_token of vision_config", vision.use_mask_token, False),
            ),
        )
        grid, merge = tower_grid(config), merge_of(config)
        if grid[0] != grid[1] or grid[0] % merge or merge * config.downsample_ratio != 1:
            raise InputError(
                f"{where}: {grid[0]} x {grid[1]} patches cannot be shuffled by downsample_ratio "
                f"{config.downsample_ratio:g}; correct config.json"
            )
        return config

    def facts(
        self, checkpoint: Checkpoint, config: Any, request: ModelRequest, options: Any
    ) -> dict[str, Any]:
        """Frames of a fixed size; see `FamilyFiles.facts`."""
        height, width = config.vision_config.image_size
        rows, columns = (side // merge_of(config) for side in tower_grid(config))
        frames = FrameSpec(
            num_frames=request.num_frames,
            size=(height, width),
            sampling="inner",
            decoder=request.decoder,
        )
        return {"frames": frames, "grid": (rows, columns)}

    def note(self, checkpoint: Checkpoint, request: ModelRequest, options: InternVLOptions) -> str:
        """Note if lmms-eval processes this number of frames differently, else "".

        It cuts a frame into `64 // num_frames` tiles at most and shows a thumbnail beside them: a
        frame of 16:9 in a clip of 32 is 3 tiles, 768 tokens. VLMEvalKit and this project show one.
        """
        tiles = min(_MOST_TILES, _TILES_OF_A_CLIP // request.num_frames)
        if options.frame_label != "lmms_eval" or tiles <= 1:
            return ""
        return (
            f"lmms-eval may cut each of {request.num_frames} frames into {tiles} tiles and a "
            "thumbnail, here a frame is one tile: set model.num_frames to 64 for equal input"
        )

    def rename(self, half: Half) -> Rename:
        """Also splits fused matrices of the original tower into three."""
        plain = super().rename(half)

        def renamed(name: str) -> str | tuple[str, ...] | None:
            own = plain(name)
            fused = _FUSED.fullmatch(own) if isinstance(own, str) else None
            if fused is None:
                return own
            return tuple(f"{fused[1]}.{part}_proj.{fused[2]}" for part in "qkv")

        return renamed


FILES = InternVLFiles()


def tower_grid(config: InternVLConfig) -> tuple[int, int]:
    """(H, W) patches of a frame."""
    vision: Any = config.vision_config
    height, width = (
        side // patch for side, patch in zip(vision.image_size, vision.patch_size, strict=True)
    )
    return height, width


def merge_of(config: InternVLConfig) -> int:
    """Number of patches per token along each axis."""
    ratio: float = config.downsample_ratio
    return round(1 / ratio)


def _original_config(checkpoint: Checkpoint) -> InternVLConfig:
    """Configuration of an original checkpoint, as that of the architecture in transformers."""
    content = checkpoint.config()
    raise_unless_supported(
        checkpoint, tuple((key, content.get(key, known), known) for key, known in _KNOWN.items())
    )
    vision = content.get("vision_config")
    text = content.get("llm_config")
    if not isinstance(vision, dict) or not isinstance(text, dict):
        raise InputError(
            f"{checkpoint.setting} {checkpoint.source}: config.json must hold vision_config and "
            "llm_config, as InternVL's authors publish them; copy the checkpoint again"
        )
    size = content.get("force_image_size")
    if size not in (None, vision.get("image_size", size)):
        raise InputError(
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
