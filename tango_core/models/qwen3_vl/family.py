"""Qwen3-VL, dense: DeepStack rows beside the tokens, times and marks between them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tango_core.models.base import ModelSpec
from tango_core.models.family import Half, ModelFamily, ModelRequest
from tango_core.models.qwen3_vl.options import Qwen3Options

if TYPE_CHECKING:
    from tango_core.models.checkpoints.directory import Checkpoint
    from tango_core.models.language.model import LayoutAndEngine
    from tango_core.models.qwen3_vl.encoder import Qwen3Encoder


class Qwen3Family(ModelFamily):
    """Dense Qwen3-VL of any size."""

    options = Qwen3Options
    # `qwen3_vl` of lmms-eval, by its defaults; its frames are those of VLMEvalKit.
    harness: Mapping[str, Mapping[str, Any]] = MappingProxyType(
        {"lmms_eval": {"system_turn": True, "min_pixels": 200_704}}
    )

    def describe(self, request: ModelRequest, options: Qwen3Options) -> ModelSpec:
        """Describe a checkpoint; see `ModelFamily.describe`."""
        from tango_core.models.qwen3_vl.description import describe_qwen3

        return describe_qwen3(request, options)

    def load_encoder(self, spec: ModelSpec) -> Qwen3Encoder:
        """Load tower and mergers."""
        from tango_core.models.qwen3_vl.encoder import Qwen3Encoder

        return Qwen3Encoder(spec)

    def load_language_model(self, spec: ModelSpec) -> LayoutAndEngine:
        """Load the language half."""
        from tango_core.models.qwen3_vl.language_model import load_qwen3_language_model

        return load_qwen3_language_model(spec)

    def half_files(self, checkpoint: Checkpoint, half: Half) -> tuple[str, ...]:
        """Weight files of one half; see `ModelFamily.half_files`."""
        from tango_core.models.checkpoints.weights import files_of_half
        from tango_core.models.qwen3_vl.checkpoint import (
            language_half,
            read_qwen3_config,
            vision_half,
        )

        read_qwen3_config(checkpoint)
        return files_of_half(checkpoint, vision_half if half == "encoder" else language_half)


FAMILY = Qwen3Family()
