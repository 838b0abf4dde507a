"""LLaVA-Video: LLaVA-OneVision with a newline after every grid row and a sentence about time.

Its publications evaluate it with 2 x 2 average pooling (27 x 27 to 13 x 13), although the
checkpoint's config.json says bilinear and users have matched other published scores only with
that; hence the setting `pooling`. The default of `time_instruction` is VLMEvalKit's sentence, with
which the published accuracies of the pruning methods were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tango_core.models.base import ModelRequest, ModelSpec
from tango_core.models.llava.description import describe_llava
from tango_core.models.llava.encoder import LlavaEncoder
from tango_core.models.llava.language_model import LlavaLanguageModel
from tango_core.models.llava.newlines import Newlines
from tango_core.models.llava.time_instruction import TimeInstruction
from tango_core.ops.saliency import Pooling

_NEWLINES: Newlines = "grid"
# `llava_vid` of lmms-eval, by its defaults (`force_sample` and `add_time_instruction` are off).
LMMS_EVAL: Mapping[str, str] = MappingProxyType(
    {"sampling": "per_second", "time_instruction": "none"}
)


def describe(
    request: ModelRequest,
    *,
    pooling: Pooling = "average",
    time_instruction: TimeInstruction = "vlmevalkit",
) -> ModelSpec:
    """Describe a LLaVA-Video checkpoint; see `tango_core.models.describe_model`."""
    spec = describe_llava(request, newlines=_NEWLINES, pooling=pooling)
    return replace(spec, time_instruction=time_instruction)


def load_encoder(spec: ModelSpec) -> LlavaEncoder:
    """Load the vision half."""
    return LlavaEncoder(spec)


def load_language_model(spec: ModelSpec) -> LlavaLanguageModel:
    """Load the language half."""
    return LlavaLanguageModel(spec, _NEWLINES)
