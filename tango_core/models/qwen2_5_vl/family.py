"""Qwen2.5-VL: windowed tower, pairs of frames, Qwen2.5 with positions in time, row and column."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tango_core.models.base import ModelSpec
from tango_core.models.family import Half, ModelFamily, ModelRequest
from tango_core.models.qwen2_5_vl.options import QwenOptions

if TYPE_CHECKING:
    from tango_core.models.checkpoints.directory import Checkpoint
    from tango_core.models.language.model import LayoutAndEngine
    from tango_core.models.qwen2_5_vl.encoder import QwenEncoder


class QwenFamily(ModelFamily):
    """Qwen2.5-VL of any size."""

    options = QwenOptions
    # `qwen2_5_vl` of lmms-eval, by its defaults.
    harness: Mapping[str, Mapping[str, Any]] = MappingProxyType(
        {"lmms_eval": {"sampling": "thinned"}}
    )

    def describe(self, request: ModelRequest, options: QwenOptions) -> ModelSpec:
        """Describe a checkpoint; see `ModelFamily.describe`."""
        from tango_core.models.qwen2_5_vl.description import describe_qwen

        return describe_qwen(request, options)

    def load_encoder(self, spec: ModelSpec) -> QwenEncoder:
        """Load tower and patch merger."""
        from tango_core.models.qwen2_5_vl.encoder import QwenEncoder

        return QwenEncoder(spec)

    def load_language_model(self, spec: ModelSpec) -> LayoutAndEngine:
        """Load the language half."""
        from tango_core.models.qwen2_5_vl.language_model import load_qwen_language_model

        return load_qwen_language_model(spec)

    def half_files(self, checkpoint: Checkpoint, half: Half) -> tuple[str, ...]:
        """Weight files of one half; see `ModelFamily.half_files`."""
        from tango_core.models.checkpoints.weights import files_of_half
        from tango_core.models.qwen2_5_vl.checkpoint import (
            language_half,
            read_qwen_config,
            vision_half,
        )

        read_qwen_config(checkpoint)
        return files_of_half(checkpoint, vision_half if half == "encoder" else language_half)


FAMILY = QwenFamily()
