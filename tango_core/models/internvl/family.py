"""InternVL3.5: one tile of 448 x 448 pixels per frame, 256 tokens each, Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tango_core.models.base import ModelSpec
from tango_core.models.family import Half, ModelFamily, ModelRequest
from tango_core.models.internvl.options import InternVLOptions

if TYPE_CHECKING:
    from tango_core.models.checkpoints.directory import Checkpoint
    from tango_core.models.internvl.encoder import InternVLEncoder
    from tango_core.models.language.model import LayoutAndEngine


class InternVLFamily(ModelFamily):
    """InternVL3.5 of any dense size, and other InternViT models with Qwen3 or Qwen2."""

    options = InternVLOptions
    wording = "internvl"
    # `internvl3_5` of lmms-eval, with its modality set to video.
    harness: Mapping[str, Mapping[str, Any]] = MappingProxyType(
        {"lmms_eval": {"sampling": "middles", "frame_label": "lmms_eval"}}
    )

    def describe(self, request: ModelRequest, options: InternVLOptions) -> ModelSpec:
        """Describe a checkpoint; see `ModelFamily.describe`."""
        from tango_core.models.internvl.description import describe_internvl

        return describe_internvl(request, options)

    def load_encoder(self, spec: ModelSpec) -> InternVLEncoder:
        """Load tower and projector."""
        from tango_core.models.internvl.encoder import InternVLEncoder

        return InternVLEncoder(spec)

    def load_language_model(self, spec: ModelSpec) -> LayoutAndEngine:
        """Load the language half."""
        from tango_core.models.internvl.language_model import load_internvl_language_model

        return load_internvl_language_model(spec)

    def half_files(self, checkpoint: Checkpoint, half: Half) -> tuple[str, ...]:
        """Weight files of one half; see `ModelFamily.half_files`."""
        from tango_core.models.checkpoints.weights import files_of_half
        from tango_core.models.internvl.checkpoint import (
            language_half,
            read_internvl_config,
            vision_half,
        )

        read_internvl_config(checkpoint)
        return files_of_half(checkpoint, vision_half if half == "encoder" else language_half)


FAMILY = InternVLFamily()
