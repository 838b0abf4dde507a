"""What only a LLaVA model can be told, and what its families differ in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tango_core.models.base import ModelSpec
from tango_core.models.llava.time_instruction import TimeInstruction
from tango_core.models.options import FamilyOptions

# Where newline tokens go among the tokens of a clip, see `newlines.py`.
Newlines = Literal["one_token", "grid"]


@dataclass(frozen=True)
class LlavaOptions(FamilyOptions):
    """LLaVA-OneVision: nothing to choose.

    Attributes:
        pooling: How the grid of the tower shrinks.
        time_instruction: Whose sentence about a clip's length and frames precedes the question
            (`time_instruction.py`). Cached tokens do not depend on it.
    """

    pooling: Literal["average", "bilinear"] = field(default="bilinear", init=False)
    time_instruction: TimeInstruction = field(default="none", init=False)

    def identity(self) -> dict[str, Any]:
        """The pooling."""
        return {"pooling": self.pooling}


@dataclass(frozen=True)
class LlavaVideoOptions(LlavaOptions):
    """LLaVA-Video; the defaults are those of the publications.

    Attributes:
        pooling: `"average"`, 27 x 27 to 13 x 13, or `"bilinear"`, to 14 x 14.
        time_instruction: `"none" | "correct" | "vlmevalkit" | "lmms_eval"`.
    """

    pooling: Literal["average", "bilinear"] = "average"
    time_instruction: TimeInstruction = "vlmevalkit"


def options_of(spec: ModelSpec) -> LlavaOptions:
    """The options of a LLaVA model."""
    assert isinstance(spec.options, LlavaOptions)
    return spec.options
