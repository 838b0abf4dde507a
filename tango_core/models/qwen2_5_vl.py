"""Qwen2.5-VL: windowed tower, pairs of frames, Qwen2.5 with positions in time, row and column.

The two halves load from one checkpoint directory; `qwen_checkpoint.py` says which tensors they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tango_core.models.base import DecoderShape, ModelSpec
from tango_core.models.checkpoint import resolve_checkpoint, weights_digest
from tango_core.models.llava_checkpoint import read_extras
from tango_core.models.placement import resolve_dtype
from tango_core.models.qwen_checkpoint import read_patch_layout, read_qwen_config
from tango_core.models.qwen_encoder import SIGNALS, QwenEncoder
from tango_core.models.qwen_language_model import QwenLanguageModel
from tango_core.models.qwen_positions import PositionRule
from tango_core.video import DecoderName, FrameSpec

# Area of a frame in tokens. At least 128 (qwen-vl-utils' default for video), at most 256: 448 x 448
# pixels, the publication's "maximum frame resolution of 448".
_MIN_TOKENS, _MAX_TOKENS = 128, 256

# `qwen2_5_vl` of lmms-eval, by its defaults.
LMMS_EVAL: Mapping[str, str] = MappingProxyType({"sampling": "thinned"})


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
    max_pixels: int | None = None,
    position_rule: PositionRule = "hf450",
    seconds_per_grid: float = 1.0,
) -> ModelSpec:
    """Describe a Qwen2.5-VL checkpoint; see `tango_core.models.describe_model`."""
    checkpoint = resolve_checkpoint(path, revision)
    config = read_qwen_config(checkpoint)
    if saliency_from is not None:
        raise ValueError(
            f"model.saliency_from is no setting of model {name}, whose tower ranks tokens by "
            "itself; leave it out"
        )
    text = config.text_config
    multiple = read_patch_layout(config).multiple
    largest = _MAX_TOKENS * multiple**2 if max_pixels is None else max_pixels
    if largest < multiple**2:
        raise ValueError(
            f"model.max_pixels must be at least one token of {multiple} x {multiple} pixels, "
            f"{multiple**2}, got {largest}"
        )
    return ModelSpec(
        name=name,
        path=path,
        revision=checkpoint.revision,
        digest=weights_digest(checkpoint),
        dtype=resolve_dtype(dtype, device, checkpoint.config()),
        device=device,
        frames=FrameSpec(
            num_frames=num_frames,
            sampling="round",
            decoder=decoder,
            max_pixels=largest,
            min_pixels=min(_MIN_TOKENS * multiple**2, largest),
            multiple=multiple,
        ),
        decoder=DecoderShape(
            num_layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            intermediate_size=text.intermediate_size,
            num_heads=text.num_attention_heads,
            num_kv_heads=text.num_key_value_heads,
            head_dim=text.hidden_size // text.num_attention_heads,
            vocab_size=text.vocab_size,
        ),
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
