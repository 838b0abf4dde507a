"""What only an InternVL model can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tango_core.models.base import ModelSpec
from tango_core.models.options import EmptyBlocks, FamilyOptions

FrameLabel = Literal["vlmevalkit", "lmms_eval"]


@dataclass(frozen=True)
class InternVLOptions(FamilyOptions):
    """How the frames of a clip are announced; cached tokens depend on none of it.

    Attributes:
        frame_label: Text in front of a frame: `"vlmevalkit"` writes `Frame-1: ` and nothing before
            a single frame, `"lmms_eval"` and the model card `Frame1: `.
        empty_blocks: Whether label and marks stay of a frame of which nothing is kept.
    """

    frame_label: FrameLabel = "vlmevalkit"
    empty_blocks: EmptyBlocks = "keep"


def options_of(spec: ModelSpec) -> InternVLOptions:
    """The options of an InternVL model."""
    assert isinstance(spec.options, InternVLOptions)
    return spec.options
