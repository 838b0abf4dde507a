"""LLaVA-OneVision: SigLIP, two-layer projector, bilinear pooling, Qwen2, one newline at the end.

The two halves load from one checkpoint directory; `llava_checkpoint.py` says which files it reads.
"""

from __future__ import annotations

from tango_core.models.base import DecoderShape, ModelSpec
from tango_core.models.checkpoint import Checkpoint, resolve_checkpoint, weights_digest
from tango_core.models.llava_checkpoint import read_config, read_extras
from tango_core.models.llava_encoder import LlavaOnevisionEncoder
from tango_core.models.llava_language_model import LlavaOnevisionLanguageModel
from tango_core.models.placement import resolve_dtype
from tango_core.video import DecoderName, FrameSpec

__all__ = [
    "LlavaOnevisionEncoder",
    "LlavaOnevisionLanguageModel",
    "describe",
    "load_encoder",
    "load_language_model",
]


def describe(
    name: str,
    path: str,
    *,
    num_frames: int,
    dtype: str,
    device: str,
    decoder: DecoderName,
    revision: str | None,
    saliency_from: str | None,
) -> ModelSpec:
    """Describe a LLaVA-OneVision checkpoint; see `tango_core.models.describe_model`."""
    checkpoint = resolve_checkpoint(path, revision)
    config = read_config(checkpoint)
    signals = {"attention", "keys"}
    if config.vision_config.vision_use_head or saliency_from is not None:
        signals |= {"saliency", "frame_embeddings"}
    text = config.text_config
    return ModelSpec(
        name=name,
        path=path,
        revision=checkpoint.revision,
        digest=_digest(checkpoint, saliency_from),
        dtype=resolve_dtype(dtype, device, checkpoint.config()),
        device=device,
        frames=FrameSpec(
            num_frames=num_frames,
            size=(config.vision_config.image_size, config.vision_config.image_size),
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
        note=read_extras(checkpoint).note,
    )


def _digest(checkpoint: Checkpoint, saliency_from: str | None) -> str:
    """Digest of the checkpoint and, if one is named, of the one that holds the pooling head."""
    own = weights_digest(checkpoint)
    if saliency_from is None:
        return own
    head = resolve_checkpoint(saliency_from, setting="model.saliency_from")
    return f"{own}+{weights_digest(head)}"


def load_encoder(spec: ModelSpec) -> LlavaOnevisionEncoder:
    """Load the vision half."""
    return LlavaOnevisionEncoder(spec)


def load_language_model(spec: ModelSpec) -> LlavaOnevisionLanguageModel:
    """Load the language half."""
    return LlavaOnevisionLanguageModel(spec)
