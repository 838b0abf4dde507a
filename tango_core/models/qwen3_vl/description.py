"""What a Qwen3-VL checkpoint's configuration says about the model, without loading weights."""

from __future__ import annotations

from tango_core.models.base import ALL_SIGNALS, LLMShape, ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint, weights_digest
from tango_core.models.family import ModelRequest
from tango_core.models.placement import resolve_dtype
from tango_core.models.qwen3_vl.checkpoint import (
    num_companions,
    read_patch_layout,
    read_qwen3_config,
    read_qwen3_extras,
)
from tango_core.models.qwen3_vl.options import Qwen3Options
from tango_core.video import FrameSpec

# Areas in tokens, the defaults of qwen-vl-utils 0.0.14: of a frame, and of all frames of a clip,
# two of them counting as one.
_MIN_TOKENS, _MAX_TOKENS = 128, 768
_ALL_TOKENS = 115_200


def describe_qwen3(request: ModelRequest, options: Qwen3Options) -> ModelSpec:
    """Describe a Qwen3-VL checkpoint.

    Args:
        request: Which checkpoint, and how it is used.
        options: The family's.

    Raises:
        ValueError: If the checkpoint is of another kind, or an area smaller than a token.
        FileNotFoundError: If it is not there.
    """
    checkpoint = resolve_checkpoint(request.path, request.revision)
    config = read_qwen3_config(checkpoint)
    if request.saliency_from is not None:
        raise ValueError(
            f"model.saliency_from is no setting of model {request.name}, whose tower ranks tokens "
            "by itself; leave it out"
        )
    multiple = read_patch_layout(config).multiple
    token = multiple**2
    area = options.frame_area
    largest = area or min(options.max_pixels or _MAX_TOKENS * token, _MAX_TOKENS * token)
    smallest = min(options.min_pixels or _MIN_TOKENS * token, largest)
    if largest < token:
        raise ValueError(
            f"model.{'frame_area' if area else 'max_pixels'} must be at least one token of "
            f"{multiple} x {multiple} pixels, {token}, got {largest}"
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
            min_pixels=0 if area else smallest,
            multiple=multiple,
            total_pixels=None if area else _ALL_TOKENS * token,
            area=area,
            times=options.frame_times,
        ),
        llm=LLMShape.of(config.text_config),
        provides=ALL_SIGNALS,
        options=options,
        note="; ".join(filter(None, (read_qwen3_extras(checkpoint).note, _times_note(options)))),
        companions=num_companions(config),
    )


def _times_note(options: Qwen3Options) -> str:
    if options.frame_times == "average_rate":
        return ""
    return (
        "where a video's frame rate varies, prompts state the frames' own times; transformers "
        "states number of the frame / average rate (model.frame_times: average_rate)"
    )
