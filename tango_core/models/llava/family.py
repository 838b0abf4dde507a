"""The LLaVA families: options, newlines and harness settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tango_core.errors import InputError
from tango_core.models.family import CheckpointFamily
from tango_core.models.options import EngineName, FamilyOptions

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
        merge_layers: 0-based blocks of the tower behind which similar frames are merged (EarlyTom,
            `towers/frame_merging.py`), e.g. `"6,21,23"`; `None` for none.
        merge_threshold: Similarity in [-1, 1] below which a group of frames ends.
        merge_momentum: Weight in (0, 1] of the newest frame in the average of similarities.
        merge_window: Most frames of a group, 2 or more.
    """

    newlines: Newlines = field(default="one_token", init=False)
    pooling: Literal["average", "bilinear"] = field(default="bilinear", init=False)
    time_instruction: TimeInstruction = field(default="none", init=False)
    pooling_step: int = PUBLISHED_STEP
    merge_layers: str | None = None
    merge_threshold: float = 0.6
    merge_momentum: float = 0.9
    merge_window: int = 8

    def __post_init__(self) -> None:
        """Check ranges; the grid and the blocks are checked against the checkpoint later."""
        ascending = ",".join(str(block) for block in sorted(set(self.merging_blocks)))
        if self.merge_layers is not None and self.merge_layers != ascending:
            raise InputError(
                f"model.merge_layers must be ascending, as '6,21,23', got {self.merge_layers!r}"
            )
        for name, is_inside, allowed in (
            ("pooling_step", self.pooling_step >= PUBLISHED_STEP, "2 or larger"),
            ("merge_threshold", -1 <= self.merge_threshold <= 1, "in [-1, 1]"),
            ("merge_momentum", 0 < self.merge_momentum <= 1, "in (0, 1]"),
            ("merge_window", self.merge_window >= 2, "2 or larger"),
        ):
            if not is_inside:
                raise InputError(f"model.{name} must be {allowed}, got {getattr(self, name)}")

    @property
    def merging_blocks(self) -> tuple[int, ...]:
        """The blocks of `merge_layers`."""
        return tuple(int(layer) for layer in re.findall(r"\d+", self.merge_layers or ""))

    @property
    def merging(self) -> dict[str, Any]:
        """Arguments of `merge_frames`."""
        return {
            "threshold": self.merge_threshold,
            "momentum": self.merge_momentum,
            "window": self.merge_window,
        }

    def identity(self) -> dict[str, Any]:
        """The pooling, its step unless it is the published one, and the merging if there is any."""
        step = {} if self.pooling_step == PUBLISHED_STEP else {"pooling_step": self.pooling_step}
        blocks = list(self.merging_blocks)
        merged = {"merging": {"blocks": blocks, **self.merging}} if blocks else {}
        return {"pooling": self.pooling, **step, **merged}

    def input_size(self) -> str:
        """The pooling step, if it is not the published one, and the merging of frames."""
        step = self.pooling_step
        sizes = [] if step == PUBLISHED_STEP else [f"pooling_step={step}"]
        if self.merge_layers is not None:
            sizes.append(f"merge_layers={self.merge_layers}")
        return " ".join(sizes)


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
    engines: tuple[EngineName, ...] = ("native", "vllm")
    package = "tango_core.models.llava"
    return CheckpointFamily(options, harness or {}, engines=engines, package=package)
