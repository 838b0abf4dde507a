"""The LLaVA families: one architecture with other newlines, options and harness settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tango_core.models.base import ModelSpec
from tango_core.models.family import Half, ModelFamily, ModelRequest
from tango_core.models.llava.options import LlavaOptions, Newlines

if TYPE_CHECKING:
    from tango_core.models.checkpoints.directory import Checkpoint
    from tango_core.models.language.model import LayoutAndEngine
    from tango_core.models.llava.encoder import LlavaEncoder


@dataclass(frozen=True)
class LlavaFamily(ModelFamily):
    """SigLIP, two-layer projector, pooling, newline tokens, Qwen2.

    Attributes:
        newlines: Where newline tokens go among a clip's tokens (`newlines.py`).
        options: Class of the options.
        harness: As in `ModelFamily`.
    """

    newlines: Newlines
    options: type[LlavaOptions] = LlavaOptions
    harness: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def describe(self, request: ModelRequest, options: LlavaOptions) -> ModelSpec:
        """Describe a checkpoint; see `ModelFamily.describe`."""
        from tango_core.models.llava.description import describe_llava

        return describe_llava(request, options, self.newlines)

    def load_encoder(self, spec: ModelSpec) -> LlavaEncoder:
        """Load tower, projector and pooling."""
        from tango_core.models.llava.encoder import LlavaEncoder

        return LlavaEncoder(spec)

    def load_language_model(self, spec: ModelSpec) -> LayoutAndEngine:
        """Load Qwen2 and the newline token."""
        from tango_core.models.llava.language_model import load_llava_language_model

        return load_llava_language_model(spec, self.newlines)

    def half_files(self, checkpoint: Checkpoint, half: Half) -> tuple[str, ...]:
        """Weight files of one half; see `ModelFamily.half_files`."""
        from tango_core.models.checkpoints.weights import files_of_half
        from tango_core.models.llava.checkpoint import LANGUAGE, VISION, half_of, read_config

        read_config(checkpoint)
        return files_of_half(checkpoint, half_of(VISION if half == "encoder" else LANGUAGE))
