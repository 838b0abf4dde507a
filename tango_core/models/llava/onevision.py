"""LLaVA-OneVision: SigLIP, two-layer projector, bilinear pooling, Qwen2, one newline at the end.

The two halves load from one checkpoint directory, in the layout of llava-hf or of its authors;
`llava_checkpoint.py` says which files it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tango_core.models.base import ModelRequest, ModelSpec
from tango_core.models.llava.description import describe_llava
from tango_core.models.llava.encoder import LlavaEncoder
from tango_core.models.llava.language_model import LlavaLanguageModel
from tango_core.models.llava.newlines import Newlines

_NEWLINES: Newlines = "one_token"
# lmms-eval shows this family the frames that VLMEvalKit shows it.
LMMS_EVAL: Mapping[str, str] = MappingProxyType({})


def describe(request: ModelRequest) -> ModelSpec:
    """Describe a LLaVA-OneVision checkpoint; see `tango_core.models.describe_model`."""
    return describe_llava(request, newlines=_NEWLINES, pooling="bilinear")


def load_encoder(spec: ModelSpec) -> LlavaEncoder:
    """Load the vision half."""
    return LlavaEncoder(spec)


def load_language_model(spec: ModelSpec) -> LlavaLanguageModel:
    """Load the language half."""
    return LlavaLanguageModel(spec, _NEWLINES)
