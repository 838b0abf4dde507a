"""Qwen2.5-VL as a family of models: its options and the files of its checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tango_core.models.family import PatchFamily
from tango_core.models.language.chat import QWEN2_5_VL
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


class QwenFamily(PatchFamily):
    """Flat as on the hub, or nested as transformers 5 names its modules; pixels as CLIP's.

    A frame has at least 128 tokens (qwen-vl-utils' default for video) and at most 256: 448 x 448
    pixels, the publication's "maximum frame resolution of 448".
    """

    package = "tango_core.models.qwen2_5_vl"
    model_type, title, kinds = "qwen2_5_vl", "Qwen2.5-VL", "'qwen2_5_vl'"
    chat = QWEN2_5_VL
    mean = (0.48145466, 0.4578275, 0.40821073)
    std = (0.26862954, 0.26130258, 0.27577711)
    renames = (
        (re.compile(r"^visual\."), "model.visual."),
        (re.compile(r"^model\.(?!language_model\.|visual\.)"), "model.language_model."),
    )
    least_tokens, most_tokens = 128, 256


FAMILY = QwenFamily(
    QwenOptions,
    harness={"lmms_eval": {"sampling": "thinned"}},  # `qwen2_5_vl` of lmms-eval, by its defaults
    engines=("native", "vllm"),
)
