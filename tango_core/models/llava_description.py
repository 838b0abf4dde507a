"""What a LLaVA checkpoint's configuration says about the model, without loading weights."""

from __future__ import annotations

from tango_core.models.base import DecoderShape, ModelSpec
from tango_core.models.checkpoint import Checkpoint, resolve_checkpoint, weights_digest
from tango_core.models.llava_checkpoint import read_config, read_extras
from tango_core.models.llava_original import newline_position
from tango_core.models.newlines import Newlines
from tango_core.models.placement import resolve_dtype
from tango_core.ops.saliency import Pooling, pooled_grid
from tango_core.video import DecoderName, FrameSpec


def describe_llava(
    name: str,
    path: str,
    *,
    num_frames: int,
    dtype: str,
    device: str,
    decoder: DecoderName,
    revision: str | None,
    saliency_from: str | None,
    newlines: Newlines,
    pooling: Pooling,
) -> ModelSpec:
    """Describe a checkpoint of a LLaVA family.

    Args:
        name: As in `tango_core.models.describe_model`, like all arguments up to `saliency_from`.
        path: Directory or hub id.
        num_frames: Frames per clip.
        dtype: Or `"auto"`.
        device: Or `"auto"`.
        decoder: Video decoder.
        revision: Of a hub checkpoint.
        saliency_from: SigLIP checkpoint with a pooling head.
        newlines: The family's; a checkpoint that says otherwise gets a note.
        pooling: How the tower's grid shrinks.

    Raises:
        ValueError: If the checkpoint is of another kind, or its grid too small for the pooling.
        FileNotFoundError: If it is not there.
    """
    checkpoint = resolve_checkpoint(path, revision)
    config = read_config(checkpoint)
    vision, text = config.vision_config, config.text_config
    side = vision.image_size // vision.patch_size
    grid = pooled_grid((side, side), pooling)
    signals = {"attention", "keys"}
    if vision.vision_use_head or saliency_from is not None:
        signals |= {"saliency", "frame_embeddings"}
    return ModelSpec(
        name=name,
        path=path,
        revision=checkpoint.revision,
        digest=_digest(checkpoint, saliency_from),
        dtype=resolve_dtype(dtype, device, checkpoint.config()),
        device=device,
        frames=FrameSpec(
            num_frames=num_frames,
            size=(vision.image_size, vision.image_size),
            sampling="truncate",
            decoder=decoder,
        ),
        decoder=DecoderShape(
            num_layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            intermediate_size=text.intermediate_size,
            num_heads=text.num_attention_heads,
            num_kv_heads=text.num_key_value_heads,
            head_dim=getattr(text, "head_dim", None)
            or text.hidden_size // text.num_attention_heads,
            vocab_size=text.vocab_size,
        ),
        provides=frozenset(signals),
        saliency_from=saliency_from,
        pooling=pooling,
        note=_note(checkpoint, name, newlines),
        grid=grid,
    )


def _digest(checkpoint: Checkpoint, saliency_from: str | None) -> str:
    """Digest of the checkpoint and, if one is named, of the one that holds the pooling head."""
    own = weights_digest(checkpoint)
    if saliency_from is None:
        return own
    head = resolve_checkpoint(saliency_from, setting="model.saliency_from")
    return f"{own}+{weights_digest(head)}"


def _note(checkpoint: Checkpoint, name: str, newlines: Newlines) -> str:
    """The checkpoint's own note, and whether it was made for another family."""
    notes = [read_extras(checkpoint).note]
    position = newline_position(checkpoint)
    if position not in (None, newlines):
        notes.append(
            f"the checkpoint was trained with mm_newline_position {position!r}, but model {name} "
            f"uses {newlines!r}: check model.name"
        )
    return "; ".join(note for note in notes if note)
