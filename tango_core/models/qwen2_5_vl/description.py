"""What a Qwen2.5-VL checkpoint's configuration says about the model, without loading weights."""

from __future__ import annotations

from tango_core.models.base import ALL_SIGNALS, LLMShape, ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint, weights_digest
from tango_core.models.family import ModelRequest
from tango_core.models.placement import resolve_dtype
from tango_core.models.qwen2_5_vl.checkpoint import (
    read_patch_layout,
    read_qwen_config,
    read_qwen_extras,
)
from tango_core.models.qwen2_5_vl.options import QwenOptions
from tango_core.video import FrameSpec

# Area of a frame in tokens. At least 128 (qwen-vl-utils' default for video), at most 256: 448 x 448
# pixels, the publication's "maximum frame resolution of 448".
_MIN_TOKENS, _MAX_TOKENS = 128, 256


def describe_qwen(request: ModelRequest, options: QwenOptions) -> ModelSpec:
    """Describe a Qwen2.5-VL checkpoint.

    Args:
        request: Which checkpoint, and how it is used.
        options: The family's.

    Raises:
        ValueError: If the checkpoint is of another kind, or `max_pixels` smaller than a token.
        FileNotFoundError: If it is not there.
    """
    checkpoint = resolve_checkpoint(request.path, request.revision)
    config = read_qwen_config(checkpoint)
    if request.saliency_from is not None:
        raise ValueError(
            f"model.saliency_from is no setting of model {request.name}, whose tower ranks tokens "
            "by itself; leave it out"
        )
    multiple = read_patch_layout(config).multiple
    area = options.frame_area
    largest = area or options.max_pixels or _MAX_TOKENS * multiple**2
    if largest < multiple**2:
        raise ValueError(
            f"model.{'frame_area' if area else 'max_pixels'} must be at least one token of "
            f"{multiple} x {multiple} pixels, {multiple**2}, got {largest}"
        )
    return ModelSpec(
        name=request.name,
        path=request.path,
        revision=checkpoint.revision,
        digest=weights_digest(checkpoint),
        dtype=resolve_dtype(request.dtype, request.device),
        device=request.device,
        frames=FrameSpec(
            num_frames=request.num_frames,
            sampling="round",
            decoder=request.decoder,
            max_pixels=largest,
            min_pixels=0 if area else min(_MIN_TOKENS * multiple**2, largest),
            multiple=multiple,
            area=area,
        ),
        llm=LLMShape.of(config.text_config),
        provides=ALL_SIGNALS,
        options=options,
        note=read_qwen_extras(checkpoint).note,
    )
