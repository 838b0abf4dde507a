"""Qwen2.5-VL as a family of models, and the options that only it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tango_core.models.family import CheckpointFamily
from tango_core.models.options import FrameAreaOptions

PositionRule = Literal["hf450", "hf5"]


@dataclass(frozen=True)
class QwenOptions(FrameAreaOptions):
    """Options of Qwen2.5-VL; the defaults are those of the publications, 448 x 448 pixels a frame.

    Attributes:
        published_pixels: As in `FrameAreaOptions`.
        max_pixels: As in `FrameAreaOptions`.
        frame_area: As in `FrameAreaOptions`.
        position_rule: Position of the text after a clip: as in transformers up to 4.5x
            (`"hf450"`) or from 5 on (`"hf5"`); see `layout.py`.
        seconds_per_grid: Seconds between pairs of frames, as used for the model's positions.
    """

    published_pixels = 448 * 448
    position_rule: PositionRule = "hf450"
    seconds_per_grid: float = 1.0


FAMILY = CheckpointFamily(
    QwenOptions,
    harness={"lmms_eval": {"sampling": "thinned"}},  # `qwen2_5_vl` of lmms-eval, by its defaults
    engines=("native", "vllm"),
    package="tango_core.models.qwen2_5_vl",
)
