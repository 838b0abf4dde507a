"""InternVL as a family of models, and the options that only it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tango_core.models.family import CheckpointFamily
from tango_core.models.options import EmptyBlocks, FamilyOptions

FrameLabel = Literal["vlmevalkit", "lmms_eval"]


@dataclass(frozen=True)
class InternVLOptions(FamilyOptions):
    """Text around the frames of a clip; cached tokens do not depend on it.

    Attributes:
        frame_label: Text in front of a frame: `"vlmevalkit"` writes `Frame-1: ` and nothing before
            a single frame, `"lmms_eval"` and the model card `Frame1: `.
        empty_blocks: Whether the label and marks of a frame without kept tokens stay.
    """

    frame_label: FrameLabel = "vlmevalkit"
    empty_blocks: EmptyBlocks = "keep"


# InternVL3.5 of any dense size, and other InternViT models with Qwen3 or Qwen2.
FAMILY = CheckpointFamily(
    InternVLOptions,
    # `internvl3_5` of lmms-eval, with its modality set to video.
    harness={"lmms_eval": {"sampling": "middles", "frame_label": "lmms_eval"}},
    wording="internvl",
    engines=("native", "vllm"),
    package="tango_core.models.internvl",
)
