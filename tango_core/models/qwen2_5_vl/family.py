"""Qwen2.5-VL as a family of models, and the options that only it has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tango_core.errors import InputError
from tango_core.models.family import CheckpointFamily
from tango_core.models.options import FamilyOptions, raise_if_wrong_area

# Largest area of a frame in the publications.
MAX_PIXELS = 448 * 448
PositionRule = Literal["hf450", "hf5"]


@dataclass(frozen=True)
class QwenOptions(FamilyOptions):
    """Options of Qwen2.5-VL; the defaults are those of the publications.

    Cached tokens depend on `max_pixels` and `frame_area`, which are part of `ModelSpec.frames`, and
    on nothing else.

    Attributes:
        max_pixels: Largest area of a frame in pixels; `None` for 448 x 448.
        frame_area: Instead of `max_pixels`: area in pixels to which every frame is scaled at its
            aspect ratio, as in VLMEvalKit on Video-MME-v2 (448 x 448).
        position_rule: Position of the text after a clip: as in transformers up to 4.5x
            (`"hf450"`) or from 5 on (`"hf5"`); see `layout.py`.
        seconds_per_grid: Seconds between pairs of frames, as used for the model's positions.
    """

    max_pixels: int | None = None
    frame_area: int | None = None
    position_rule: PositionRule = "hf450"
    seconds_per_grid: float = 1.0

    def input_size(self) -> str:
        """The frame area, if it is not the published one."""
        if self.frame_area is not None:
            return f"frame_area={self.frame_area}"
        return "" if self.max_pixels in (None, MAX_PIXELS) else f"max_pixels={self.max_pixels}"

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.max_pixels is not None and self.max_pixels < 1:
            raise InputError(f"model.max_pixels must be 1 or larger, got {self.max_pixels}")
        raise_if_wrong_area(self.frame_area, {"max_pixels": self.max_pixels})
        if not 0 < self.seconds_per_grid < math.inf:
            raise InputError(
                f"model.seconds_per_grid must be a positive number, got {self.seconds_per_grid:g}"
            )


FAMILY = CheckpointFamily(
    "tango_core.models.qwen2_5_vl",
    QwenOptions,
    harness={"lmms_eval": {"sampling": "thinned"}},  # `qwen2_5_vl` of lmms-eval, by its defaults
    engines=("native", "vllm"),
)
