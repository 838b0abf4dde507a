"""The LLaVA families: options, newlines and harness settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tango_core.errors import InputError
from tango_core.models.family import CheckpointFamily
from tango_core.models.options import FamilyOptions

# Published number of tower positions per token along each axis.
PUBLISHED_STEP = 2
# Where newline tokens go among the tokens of a clip, see `layout.lay_out_clip`.
Newlines = Literal["one_token", "grid"]
# Source of the sentence about a clip's length and frames before the question.
TimeInstruction = Literal["none", "correct", "vlmevalkit", "lmms_eval"]


@dataclass(frozen=True)
class LlavaOptions(FamilyOptions):
    """Options of LLaVA-OneVision.

    Attributes:
        newlines: Where newline tokens go among a clip's tokens (`layout.lay_out_clip`).
        pooling: How the grid of the tower shrinks.
        time_instruction: Source of the sentence about a clip's length and frames before the
            question (`layout.time_instruction`). Cached tokens do not depend on it.
        pooling_step: Number of tower positions per token along each axis, 2 as published. A larger
            step gives fewer tokens from the same pixels, as the tower's input size is fixed.
    """

    newlines: Newlines = field(default="one_token", init=False)
    pooling: Literal["average", "bilinear"] = field(default="bilinear", init=False)
    time_instruction: TimeInstruction = field(default="none", init=False)
    pooling_step: int = PUBLISHED_STEP

    def __post_init__(self) -> None:
        """Check the range; the grid's size is checked against the checkpoint later."""
        if self.pooling_step < PUBLISHED_STEP:
            raise InputError(
                f"model.pooling_step must be {PUBLISHED_STEP} or larger, got {self.pooling_step}"
            )

    def identity(self) -> dict[str, Any]:
        """The pooling, and its step unless it is the published one."""
        if self.pooling_step == PUBLISHED_STEP:
            return {"pooling": self.pooling}
        return {"pooling": self.pooling, "pooling_step": self.pooling_step}

    def input_size(self) -> str:
        """The pooling step, if it is not the published one."""
        step = self.pooling_step
        return "" if step == PUBLISHED_STEP else f"pooling_step={step}"


@dataclass(frozen=True)
class LlavaVideoOptions(LlavaOptions):
    """Options of LLaVA-Video; the defaults are the published ones.

    Attributes:
        newlines: As for LLaVA-OneVision.
        pooling: `"average"`, 27 x 27 to 13 x 13, or `"bilinear"`, to 14 x 14.
        time_instruction: `"none" | "correct" | "vlmevalkit" | "lmms_eval"`.
        pooling_step: As for LLaVA-OneVision.
    """

    newlines: Newlines = field(default="grid", init=False)
    pooling: Literal["average", "bilinear"] = "average"
    time_instruction: TimeInstruction = "vlmevalkit"


def llava_family(
    options: type[LlavaOptions], harness: Mapping[str, Mapping[str, Any]] | None = None
) -> CheckpointFamily:
    """A family of models with SigLIP, two-layer projector, pooling, newline tokens and Qwen2."""
    return CheckpointFamily(
        "tango_core.models.llava", options, harness or {}, engines=("native", "vllm")
    )
