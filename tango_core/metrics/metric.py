"""What a metric is: one function from the outcomes of questions to what is averaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tango_core.metrics.accuracy import accuracy_of_clips
from tango_core.metrics.estimate import Estimate
from tango_core.metrics.means import mean_of_clips

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Questions:
    """What one cell made of q questions: of a whole benchmark, or of some clips of it.

    Attributes:
        scored: (q,) whether the question was asked and its right answer is known.
        right: (q,) whether the reply is right.
        scores: (q,) score of the reply in [0, 1]; 0 where it failed or could not be read. Where a
            benchmark has no other scores, 1 for right and 0 for wrong.
        clips: (q,) number of the question's clip, from 0; all questions of a clip are there.
        group_sets: The different sets of groups that questions have: group -> value.
        group_codes: (q,) number of every question's set.
    """

    scored: Mask
    right: Mask
    scores: Floats
    clips: npt.NDArray[np.integer]
    group_sets: Sequence[Mapping[str, str]]
    group_codes: npt.NDArray[np.integer]


class Counted(NamedTuple):
    """What a metric averages.

    Attributes:
        counts: (q,) which questions have a value. A value of several questions stands at one of
            them, and in the break-downs it is in the groups of this one.
        values: (q,) the values in [0, 1]; what stands elsewhere is ignored.
    """

    counts: Mask
    values: Floats


@dataclass(frozen=True)
class Metric:
    """A score of a benchmark: the mean of what its function makes of the questions.

    Attributes:
        name: Key in `summary.json`, in MLflow and in CSV files.
        title: Name in headings; "%" follows it there.
        count: The function. It looks at no clip but a question's own, so that it may be called
            with some clips or with all, and whole clips are independent.
        right_wrong: Whether all values are 0 or 1: then intervals are Wilson's, else from a
            bootstrap of clips.
        unit: What has a value.
        reads_scores: Whether it reads `Questions.scores`; only then a score per question is kept.
    """

    name: str
    title: str
    count: Callable[[Questions], Counted]
    right_wrong: bool = False
    unit: Literal["question", "group"] = "question"
    reads_scores: bool = False

    def estimate(self, sums: npt.ArrayLike, counted: npt.ArrayLike) -> Estimate | None:
        """The mean with its interval.

        Args:
            sums: (G,) sum of the values of each clip.
            counted: (G,) number of values of each clip.

        Returns:
            `None` if there are no values.
        """
        interval = accuracy_of_clips if self.right_wrong else mean_of_clips
        return interval(sums, counted)
