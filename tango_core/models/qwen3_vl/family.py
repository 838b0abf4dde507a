"""Qwen3-VL and Qwen3.5 as families of models, and the options that only they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tango_core.errors import InputError
from tango_core.models.family import CheckpointFamily
from tango_core.models.options import FamilyOptions, raise_if_wrong_area
from tango_core.video.frame_spec import FrameTimes


@dataclass(frozen=True)
class StampedOptions(FamilyOptions):
    """Options of Qwen3.5, and of Qwen3-VL; the defaults are those of qwen-vl-utils 0.0.14.

    Cached tokens depend on the areas and `frame_times`, which are part of `ModelSpec.frames`.

    Attributes:
        max_pixels: Largest area of a frame in pixels; `None` for 768 tokens. Long clips get smaller
            frames.
        min_pixels: Smallest area of a frame; `None` for 128 tokens.
        frame_area: Instead of both: area in pixels to which every frame is scaled at its aspect
            ratio, as in VLMEvalKit on Video-MME-v2 (448 x 448).
        empty_blocks: Whether the time and the marks of a pair of frames without kept tokens stay,
            as in vLLM (`"keep"`), or are removed (`"drop"`).
        outer_marks: Whether another pair of marks encloses the whole clip, as in the processor of
            transformers 5 but not in the release and vLLM.
        system_turn: Whether the conversation begins with `You are a helpful assistant.`
        frame_times: Times that the prompt states: those of the frames in the file (`"own"`), or
            number of the frame / average rate (`"average_rate"`), as the processor of transformers
            computes them. They differ where the frame rate varies.
    """

    max_pixels: int | None = None
    min_pixels: int | None = None
    frame_area: int | None = None
    empty_blocks: Literal["keep", "drop"] = "keep"
    outer_marks: bool = False
    system_turn: bool = False
    frame_times: FrameTimes = "own"

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("max_pixels", "min_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"model.{name} must be 1 or larger, got {value}")
        # Not `min_pixels`, which a protocol may set.
        raise_if_wrong_area(self.frame_area, {"max_pixels": self.max_pixels})

    def input_size(self) -> str:
        """The frame area, if it is not the default."""
        if self.frame_area is not None:
            return f"frame_area={self.frame_area}"
        return "" if self.max_pixels is None else f"max_pixels={self.max_pixels}"


@dataclass(frozen=True)
class Qwen3Options(StampedOptions):
    """Options of Qwen3-VL; cached tokens depend on `companions` too.

    Attributes:
        companions: DeepStack rows of merged tokens: merged with the same weights (`"merge"`), or
            those of the token at the merged token's position (`"anchor"`, as in FlashVID's
            release).
    """

    companions: Literal["merge", "anchor"] = "merge"

    def identity(self) -> dict[str, Any]:
        """The rule for companions."""
        return {"companions": self.companions}


FAMILY = CheckpointFamily(
    "tango_core.models.qwen3_vl",
    Qwen3Options,
    # `qwen3_vl` of lmms-eval, by its defaults; its frames are those of VLMEvalKit.
    harness={"lmms_eval": {"system_turn": True, "min_pixels": 200_704}},
    engines=("native", "vllm"),
)
