"""What a LLaVA checkpoint's configuration says about the model, without loading weights."""

from __future__ import annotations

from tango_core.models.base import LLMShape, ModelSpec
from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint, weights_digest
from tango_core.models.family import ModelRequest
from tango_core.models.llava.checkpoint import read_config, read_llava_extras
from tango_core.models.llava.options import LlavaOptions, Newlines
from tango_core.models.llava.original import newline_position
from tango_core.models.llava.siglip_config import SIGLIP_OF_LLAVA
from tango_core.models.placement import resolve_dtype
from tango_core.ops.saliency import pooled_grid
from tango_core.video import FrameSpec


def describe_llava(request: ModelRequest, options: LlavaOptions, newlines: Newlines) -> ModelSpec:
    """Describe a checkpoint of a LLaVA family.

    Args:
        request: Which checkpoint, and how it is used.
        options: The family's.
        newlines: The family's; a checkpoint that says otherwise gets a note.

    Raises:
        ValueError: If the checkpoint is of another kind, or its grid too small for the pooling.
        FileNotFoundError: If it is not there.
    """
    checkpoint = resolve_checkpoint(request.path, request.revision)
    config = read_config(checkpoint)
    vision = config.vision_config
    side = vision.image_size // vision.patch_size
    grid = _grid(side, options)
    signals = {"attention", "keys"}
    if vision.vision_use_head or request.saliency_from is not None:
        signals |= {"saliency", "frame_embeddings"}
    return ModelSpec(
        name=request.name,
        path=request.path,
        revision=checkpoint.revision,
        digest=_digest(checkpoint, request.saliency_from),
        dtype=resolve_dtype(request.dtype, request.device),
        device=request.device,
        frames=FrameSpec(
            num_frames=request.num_frames,
            size=(vision.image_size, vision.image_size),
            sampling="truncate",
            decoder=request.decoder,
        ),
        llm=LLMShape.of(config.text_config),
        provides=frozenset(signals),
        saliency_from=request.saliency_from,
        saliency_source=SIGLIP_OF_LLAVA,
        options=options,
        note=_note(checkpoint, request.name, newlines),
        grid=grid,
    )


def _grid(side: int, options: LlavaOptions) -> tuple[int, int]:
    """(H, W) of the tokens of a frame.

    Raises:
        ValueError: If the tower's grid is too small for the step.
    """
    if options.pooling_step > side:
        raise ValueError(
            f"model.pooling_step must be at most the {side} positions of a side of the tower's "
            f"grid, got {options.pooling_step}"
        )
    return pooled_grid((side, side), options.pooling, options.pooling_step)


def _digest(checkpoint: Checkpoint, saliency_from: str | None) -> str:
    """Digest of the checkpoint and, if one is named, of the one that holds the pooling head."""
    own = weights_digest(checkpoint)
    if saliency_from is None:
        return own
    head = resolve_checkpoint(saliency_from, setting="model.saliency_from")
    return f"{own}+{weights_digest(head)}"


def _note(checkpoint: Checkpoint, name: str, newlines: Newlines) -> str:
    """The checkpoint's own note, and whether it was made for another family."""
    notes = [read_llava_extras(checkpoint).note]
    position = newline_position(checkpoint)
    if position not in (None, newlines):
        notes.append(
            f"the checkpoint was trained with mm_newline_position {position!r}, but model {name} "
            f"uses {newlines!r}: check model.name"
        )
    return "; ".join(note for note in notes if note)
