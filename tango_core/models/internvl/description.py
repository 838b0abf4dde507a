"""What an InternVL checkpoint's configuration says about the model, without loading weights."""

from __future__ import annotations

from tango_core.models.base import ALL_SIGNALS, LLMShape, ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint, weights_digest
from tango_core.models.family import ModelRequest
from tango_core.models.internvl.checkpoint import (
    merge_of,
    read_internvl_config,
    read_internvl_extras,
    tower_grid,
)
from tango_core.models.internvl.options import InternVLOptions
from tango_core.models.placement import resolve_dtype
from tango_core.video import FrameSpec

# lmms-eval allows a frame 64 // frames tiles, at most 12.
_TILES_OF_A_CLIP, _MOST_TILES = 64, 12


def describe_internvl(request: ModelRequest, options: InternVLOptions) -> ModelSpec:
    """Describe an InternVL checkpoint.

    Args:
        request: Which checkpoint, and how it is used.
        options: The family's.

    Raises:
        ValueError: If the checkpoint is of another kind.
        FileNotFoundError: If it is not there.
    """
    checkpoint = resolve_checkpoint(request.path, request.revision)
    config = read_internvl_config(checkpoint)
    if request.saliency_from is not None:
        raise ValueError(
            f"model.saliency_from is no setting of model {request.name}, whose tower ranks tokens "
            "by itself; leave it out"
        )
    height, width = config.vision_config.image_size
    merge = merge_of(config)
    notes = (read_internvl_extras(checkpoint).note, tiles_note(options, request.num_frames))
    return ModelSpec(
        name=request.name,
        path=request.path,
        revision=checkpoint.revision,
        digest=weights_digest(checkpoint),
        dtype=resolve_dtype(request.dtype, request.device),
        device=request.device,
        frames=FrameSpec(
            num_frames=request.num_frames,
            size=(height, width),
            sampling="inner",
            decoder=request.decoder,
        ),
        llm=LLMShape.of(config.text_config),
        provides=ALL_SIGNALS,
        options=options,
        note="; ".join(note for note in notes if note),
        grid=(tower_grid(config)[0] // merge, tower_grid(config)[1] // merge),
    )


def tiles_note(options: InternVLOptions, num_frames: int) -> str:
    """What lmms-eval does otherwise with so few frames; "" where it does not.

    It cuts a frame into `64 // num_frames` tiles at most and shows a thumbnail beside them: a frame
    of 16:9 in a clip of 32 is 3 tiles, 768 tokens. VLMEvalKit and this project show one tile.
    """
    tiles = min(_MOST_TILES, _TILES_OF_A_CLIP // num_frames)
    if options.frame_label != "lmms_eval" or tiles <= 1:
        return ""
    return (
        f"lmms-eval may cut each of {num_frames} frames into {tiles} tiles and a thumbnail, here a "
        "frame is one tile: set model.num_frames to 64 for equal input"
    )
