"""Qwen2.5-VL: windowed tower, pairs of frames, Qwen2.5 with positions in time, row and column.

The two halves load from one checkpoint directory; `qwen_checkpoint.py` says which tensors they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tango_core.models.base import LLMShape, ModelRequest, ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint, weights_digest
from tango_core.models.llava.checkpoint import read_extras
from tango_core.models.placement import resolve_dtype
from tango_core.models.qwen2_5_vl.checkpoint import read_patch_layout, read_qwen_config
from tango_core.models.qwen2_5_vl.encoder import SIGNALS, QwenEncoder
from tango_core.models.qwen2_5_vl.language_model import QwenLanguageModel
from tango_core.models.qwen2_5_vl.positions import PositionRule
from tango_core.video import FrameSpec

# Area of a frame in tokens. At least 128 (qwen-vl-utils' default for video), at most 256: 448 x 448
# pixels, the publication's "maximum frame resolution of 448".
_MIN_TOKENS, _MAX_TOKENS = 128, 256

# `qwen2_5_vl` of lmms-eval, by its defaults.
LMMS_EVAL: Mapping[str, str] = MappingProxyType({"sampling": "thinned"})


def describe(
    request: ModelRequest,
    *,
    max_pixels: int | None = None,
    position_rule: PositionRule = "hf450",
    seconds_per_grid: float = 1.0,
) -> ModelSpec:
    """Describe a Qwen2.5-VL checkpoint; see `tango_core.models.describe_model`."""
    checkpoint = resolve_checkpoint(request.path, request.revision)
    config = read_qwen_config(checkpoint)
    if request.saliency_from is not None:
        raise ValueError(
            f"model.saliency_from is no setting of model {request.name}, whose tower ranks tokens "
            "by itself; leave it out"
        )
    multiple = read_patch_layout(config).multiple
    largest = _MAX_TOKENS * multiple**2 if max_pixels is None else max_pixels
    if largest < multiple**2:
        raise ValueError(
            f"model.max_pixels must be at least one token of {multiple} x {multiple} pixels, "
            f"{multiple**2}, got {largest}"
        )
    return ModelSpec(
        name=request.name,
        path=request.path,
        revision=checkpoint.revision,
        digest=weights_digest(checkpoint),
        dtype=resolve_dtype(request.dtype, request.device, checkpoint.config()),
        device=request.device,
        frames=FrameSpec(
            num_frames=request.num_frames,
            sampling="round",
            decoder=request.decoder,
            max_pixels=largest,
            min_pixels=min(_MIN_TOKENS * multiple**2, largest),
            multiple=multiple,
        ),
        llm=LLMShape.of(config.text_config),
        provides=SIGNALS,
        note=read_extras(checkpoint).note,
        position_rule=position_rule,
        seconds_per_grid=seconds_per_grid,
    )


def load_encoder(spec: ModelSpec) -> QwenEncoder:
    """Load the vision half."""
    return QwenEncoder(spec)


def load_language_model(spec: ModelSpec) -> QwenLanguageModel:
    """Load the language half."""
    return QwenLanguageModel(spec)
