"""InternVL as a family of models: its options, and checkpoints in both layouts.

The authors' modelling code (`internvl_chat`) in a checkpoint is never run. Their config.json is
converted to the configuration of transformers; unsupported settings are rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tango_core.models.family import CheckpointFamily, Half, ModelRequest
from tango_core.models.language.chat import INTERNVL2_5
from tango_core.models.options import EmptyBlocks, FamilyOptions
from tango_core.video import FrameSpec

if TYPE_CHECKING:
    from tango_core.models.checkpoints.directory import Checkpoint
    from tango_core.models.checkpoints.weights import Rename

FrameLabel = Literal["vlmevalkit", "lmms_eval"]
# The original tower stores queries, keys and values as one matrix.
_FUSED = re.compile(r"(.+\.attention)\.qkv\.(weight|bias)")

# Settings of the original code, with the only supported value, which is also the default.
_KNOWN = (("select_layer", (-1,)), ("downsample_ratio", (0.5,)), ("ps_version", ("v2",)))
MERGE = 2
"""Number of patches per token along each axis, by `downsample_ratio`."""

# Fields of the original tower's configuration that have another name in transformers.
_VISION = {"qk_normalization": "use_qk_norm", "qkv_bias": "attention_bias"}


@dataclass(frozen=True)
class InternVLOptions(FamilyOptions):
    """Text around the frames of a clip; cached tokens do not depend on it.

    Attributes:
        frame_label: Text in front of a frame: `"vlmevalkit"` writes `Frame-1: ` and nothing before
            a single frame, `"lmms_eval"` and the model card `Frame1: `.
        empty_blocks: Whether the label and markers of a frame without kept tokens stay.
    """

    frame_label: FrameLabel = "vlmevalkit"
    empty_blocks: EmptyBlocks = "keep"


class InternVLFamily(CheckpointFamily):
    """Names of tensors in original checkpoints, in older ones for transformers, and today's."""

    package = "tango_core.models.internvl"
    title, kinds = "InternVL", "'internvl' (transformers) or 'internvl_chat' (OpenGVLab)"
    chat = INTERNVL2_5
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)
    supported = (
        *_KNOWN,
        ("text_config.model_type", ("qwen3", "qwen2")),  # InternVL3 has Qwen2.5
        ("vision_feature_layer", (-1,)),
        ("vision_feature_select_strategy", ("default",)),
    )
    renames = (
        (re.compile(r"\.class_embedding$"), ".cls_token"),
        (re.compile(r"\.position_embedding$"), ".position_embeddings"),
        (re.compile(r"\.patch_embedding\."), ".patch_embeddings.projection."),
        (re.compile(r"^(vision_model\.encoder)\.layers\."), r"\1.layer."),
        (re.compile(r"\.attn\.proj\."), ".attention.projection_layer."),
        (re.compile(r"\.attn\."), ".attention."),
        (re.compile(r"\.norm1\."), ".layernorm_before."),
        (re.compile(r"\.norm2\."), ".layernorm_after."),
        (re.compile(r"\.ls([12])$"), r".lambda_\1"),
        (re.compile(r"^vision_model\."), "vision_tower."),
        (re.compile(r"^mlp1\.0\."), "multi_modal_projector.layer_norm."),
        (re.compile(r"^mlp1\.1\."), "multi_modal_projector.linear_1."),
        (re.compile(r"^mlp1\.3\."), "multi_modal_projector.linear_2."),
        (re.compile(r"^language_model\.lm_head\."), "lm_head."),
        (re.compile(r"^language_model\.model\."), "model.language_model."),
        (re.compile(r"^(vision_tower|multi_modal_projector)\."), r"model.\1."),
    )

    def config_of(self, checkpoint: Checkpoint, content: dict[str, Any]) -> Any:
        """See `CheckpointFamily.config_of`."""
        from transformers import InternVLConfig

        if content.get("model_type") == "internvl_chat":
            return InternVLConfig(**_original_config(content))
        if content.get("model_type") != "internvl":
            return None
        # transformers ties embeddings if the top level has no setting, but older releases only
        # wrote the setting of the text model.
        tied = (content.get("text_config") or {}).get("tie_word_embeddings", False)
        return InternVLConfig.from_dict({"tie_word_embeddings": tied, **content})

    def facts(self, config: Any, request: ModelRequest, options: Any) -> dict[str, Any]:
        """Frames of a fixed size; see `CheckpointFamily.facts`."""
        height, width = config.vision_config.image_size
        rows, columns = (side // MERGE for side in tower_grid(config))
        frames = FrameSpec(
            num_frames=request.num_frames,
            size=(height, width),
            sampling="inner",
            decoder=request.decoder,
        )
        return {"frames": frames, "grid": (rows, columns)}

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


def tower_grid(config: Any) -> tuple[int, int]:
    """(H, W) patches of a frame."""
    vision: Any = config.vision_config
    height, width = (
        side // patch for side, patch in zip(vision.image_size, vision.patch_size, strict=True)
    )
    return height, width


def _original_config(content: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `InternVLConfig` for an original checkpoint."""
    from transformers import InternVLVisionConfig

    vision = {_VISION.get(key, key): value for key, value in content["vision_config"].items()}
    names = InternVLVisionConfig().to_dict().keys() - {"model_type", "architectures"}
    text = content["llm_config"]
    return {
        # No normalisation behind the last layer.
        "vision_config": InternVLVisionConfig(
            **{key: value for key, value in vision.items() if key in names}, use_mean_pooling=True
        ),
        "text_config": text,
        "tie_word_embeddings": bool(text.get("tie_word_embeddings", False)),
        **{name: content[name] for name, _ in _KNOWN if name in content},
    }


# InternVL3.5 of any dense size, and other InternViT models with Qwen3 or Qwen2.
FAMILY = InternVLFamily(
    InternVLOptions,
    # `internvl3_5` of lmms-eval, with its modality set to video.
    harness={"lmms_eval": {"sampling": "middles", "frame_label": "lmms_eval"}},
    wording="internvl",
    engines=("native", "vllm"),
)
