"""Qwen3-VL and Qwen3.5 as families of models, and the options that only they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tango_core.models.family import CheckpointFamily
from tango_core.models.options import FrameAreaOptions
from tango_core.video.frame_spec import FrameTimes


@dataclass(frozen=True)
class StampedOptions(FrameAreaOptions):
    """Options of Qwen3.5, and of Qwen3-VL; the defaults are those of qwen-vl-utils 0.0.14.

    Cached tokens depend on the areas and `frame_times`, which are part of `ModelSpec.frames`.

    Attributes:
        published_pixels: As in `FrameAreaOptions`.
        max_pixels: Largest area of a frame in pixels; `None` for 768 tokens. Long clips get smaller
            frames.
        frame_area: As in `FrameAreaOptions`, instead of both bounds.
        min_pixels: Smallest area of a frame; `None` for 128 tokens.
        empty_blocks: Whether the time and the marks of a pair of frames without kept tokens stay,
            as in vLLM (`"keep"`), or are removed (`"drop"`).
        outer_marks: Whether another pair of marks encloses the whole clip, as in the processor of
            transformers 5 but not in the release and vLLM.
        system_turn: Whether the conversation begins with `You are a helpful assistant.`
        frame_times: Times that the prompt states: those of the frames in the file (`"own"`), or
            number of the frame / average rate (`"average_rate"`), as the processor of transformers
            computes them. They differ where the frame rate varies.
    """

    min_pixels: int | None = None
    empty_blocks: Literal["keep", "drop"] = "keep"
    outer_marks: bool = False
    system_turn: bool = False
    frame_times: FrameTimes = "own"


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
    Qwen3Options,
    # `qwen3_vl` of lmms-eval, by its defaults; its frames are those of VLMEvalKit.
    harness={"lmms_eval": {"system_turn": True, "min_pixels": 200_704}},
    engines=("native", "vllm"),
    package="tango_core.models.qwen3_vl",
)
