"""The LLaVA families: options, newlines and harness settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tango_core.errors import InputError
from tango_core.models.family import CheckpointFamily
from tango_core.models.options import FamilyOptions

# Positions of the tower per token and axis in the publications.
PUBLISHED_STEP = 2
# Where newline tokens go among the tokens of a clip, see `layout.lay_out_clip`.
Newlines = Literal["one_token", "grid"]
# Whose sentence about a clip's length and frames precedes the question.
TimeInstruction = Literal["none", "correct", "vlmevalkit", "lmms_eval"]


@dataclass(frozen=True)
class LlavaOptions(FamilyOptions):
    """LLaVA-OneVision: how much of the input it sees.

    Attributes:
        newlines: Where newline tokens go among a clip's tokens (`layout.lay_out_clip`).
        pooling: How the grid of the tower shrinks.
        time_instruction: Whose sentence about a clip's length and frames precedes the question
            (`layout.time_instruction`). Cached tokens do not depend on it.
        pooling_step: Positions of the tower per token and axis, 2 as published. A larger step
            gives fewer tokens of the same pixels, since the tower always sees its one size.
    """

    newlines: Newlines = field(default="one_token", init=False)
    pooling: Literal["average", "bilinear"] = field(default="bilinear", init=False)
    time_instruction: TimeInstruction = field(default="none", init=False)
    pooling_step: int = PUBLISHED_STEP

    def __post_init__(self) -> None:
        """Check the range; whether the grid is large enough, the checkpoint says."""
        if self.pooling_step < PUBLISHED_STEP:
            raise InputError(
                f"model.pooling_step must be {PUBLISHED_STEP} or larger, got {self.pooling_step}"
            )

    def identity(self) -> dict[str, Any]:
        """The pooling, and its step where it is not the published one."""
        if self.pooling_step == PUBLISHED_STEP:
            return {"pooling": self.pooling}
        return {"pooling": self.pooling, "pooling_step": self.pooling_step}

    def input_size(self) -> str:
        """Another step of the pooling."""
        step = self.pooling_step
        return "" if step == PUBLISHED_STEP else f"pooling_step={step}"


@dataclass(frozen=True)
class LlavaVideoOptions(LlavaOptions):
    """LLaVA-Video; the defaults are those of the publications.

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
    """A family of SigLIP, two-layer projector, pooling, newline tokens, Qwen2."""
    return CheckpointFamily("tango_core.models.llava", options, harness or {})
