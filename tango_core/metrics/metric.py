"""`Metric`, and the metrics that benchmarks use.

The group score is Video-MME-v2's, in which four questions about one video have one score:
MME-Benchmarks/Video-MME-v2, `evaluation/test_videomme_v2.py` at b24176a1; the same rules are in
VLMEvalKit (`vlmeval/dataset/videomme_v2.py`) and in lmms-eval (`tasks/videomme_v2`). All scores are
in percent there. A reply that failed or could not be read is wrong here; the official script counts
it as right in logic groups, because it stores -1 for it and asks whether that is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tango_core.metrics.intervals import Estimate, accuracy_of_clips, mean_of_clips

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Questions:
    """Results of one cell on q questions of a benchmark or of some of its clips.

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
    """The values that a metric averages.

    Attributes:
        counts: (q,) bool, questions with a value. The value of a group of questions is assigned to
            one of them, and counts in the groups of this question in breakdowns.
        values: (q,) values in [0, 1]; entries without `counts` are ignored.
    """

    counts: Mask
    values: Floats


@dataclass(frozen=True)
class Metric:
    """A metric of a benchmark: the mean of the values that its function computes.

    Attributes:
        name: Key in `summary.json`, in MLflow and in CSV files.
        title: Name in headings; "%" follows it there.
        count: The function. Values depend only on the question's own clip, so it may be called with
            some clips or with all, and clips are independent.
        right_wrong: Whether all values are 0 or 1: then intervals are Wilson's, else from a
            bootstrap of clips.
        unit: Name of the items that have a value.
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


GROUP_SIZE = 4
# Groups of a question that the score reads; `group_position` counts from 1.
TYPE, STRUCTURE, POSITION = "group_type", "group_structure", "group_position"
RELEVANCE, LOGIC = "relevance", "logic"
# Structure of a logic group, without spaces -> score by the length of the leading right run.
_LADDERS = {
    "[1,2,3,4]": (0.0, 1 / 16, 4 / 16, 9 / 16, 1.0),
    "[1,[2,3],4]": (0.0, 1 / 12, 4 / 12, 7 / 12, 1.0),
    "[[1,2],3,4]": (0.0, 0.1, 0.2, 0.5, 1.0),
}
STRUCTURES = tuple(_LADDERS)


def structure_of(text: str) -> str:
    """A structure as the release writes it, in the form of `STRUCTURES`."""
    return "".join(text.split())


def score_of_group(kind: str, structure: str, right: Sequence[bool]) -> float:
    """Score of one group of four questions, in [0, 1].

    A relevance group asks about one thing in four ways: its score is the square of the share of
    right answers. A logic group is a chain of reasoning, of which the leading right answers count;
    in brackets stand two steps that need no order, so the later one of them may be right alone.

    Args:
        kind: `"relevance"` or `"logic"`.
        structure: Of a logic group, one of `STRUCTURES`; ignored for the other kind.
        right: Four values in the order of the questions.

    Raises:
        ValueError: If kind or structure is another one, or there are not four values.
    """
    if len(right) != GROUP_SIZE:
        raise ValueError(f"a group has {GROUP_SIZE} questions, got {len(right)}")
    if kind == RELEVANCE:
        return (sum(map(bool, right)) / GROUP_SIZE) ** 2
    if kind != LOGIC or structure not in _LADDERS:
        raise ValueError(
            f"group_type must be {RELEVANCE} or {LOGIC}, and group_structure of the latter one of "
            f"{', '.join(STRUCTURES)}; got {kind!r} and {structure!r}"
        )
    run = next((at for at, one in enumerate(right) if not one), GROUP_SIZE)
    first, second, third, _ = map(bool, right)
    if structure == "[1,[2,3],4]" and first and not second and third:
        run = 2
    if structure == "[[1,2],3,4]" and not first and second:
        run = 1
    return _LADDERS[structure][run]


def count_groups(questions: Questions) -> Counted:
    """One value per clip, at its last question; clips without all four questions have none.

    The last question is where the release states level and categories of a group.
    """
    sets, codes = questions.group_sets, questions.group_codes
    # Place of every question in its group from 0, -1 for none.
    places = np.array([int(groups.get(POSITION, 0)) - 1 for groups in sets] or [-1])[codes]
    known = questions.scored & (places >= 0)
    size = int(questions.clips.max(initial=-1)) + 1
    there = np.zeros((size, GROUP_SIZE), dtype=bool)
    right = np.zeros((size, GROUP_SIZE), dtype=bool)
    rows, columns = questions.clips[known], places[known]
    there[rows, columns] = True
    right[rows, columns] = questions.right[known]
    patterns = right @ (1 << np.arange(GROUP_SIZE - 1, -1, -1))
    counts = (
        known & (places == GROUP_SIZE - 1) & np.logical_and.reduce(there, axis=1)[questions.clips]
    )
    values = np.zeros(len(counts))
    at = counts.nonzero()[0]
    tables = [_table(groups.get(TYPE, RELEVANCE), groups.get(STRUCTURE, "")) for groups in sets]
    if len(at):
        values[at] = np.array(tables)[codes[at], patterns[questions.clips[at]]]
    return Counted(counts, values)


@cache
def _table(kind: str, structure: str) -> tuple[float, ...]:
    """Score of all 16 patterns of right and wrong, wrong-wrong-wrong-wrong first."""
    patterns = product((False, True), repeat=GROUP_SIZE)
    return tuple(score_of_group(kind, structure, pattern) for pattern in patterns)


def count_right(questions: Questions) -> Counted:
    """Right answers."""
    return Counted(questions.scored, questions.right.astype(float))


def count_scores(questions: Questions) -> Counted:
    """The score of every reply."""
    return Counted(questions.scored, questions.scores)


def count_above(questions: Questions, threshold: float) -> Counted:
    """Replies whose score reaches a threshold."""
    return Counted(questions.scored, (questions.scores >= threshold).astype(float))


ACCURACY = Metric("accuracy", "accuracy", count_right, right_wrong=True)
GROUP_SCORE = Metric("group_score", "group score", count_groups, unit="group")
MEAN_IOU = Metric("miou", "mIoU", count_scores, reads_scores=True)
RECALL_03, RECALL_05, RECALL_07 = (
    Metric(
        f"r1_iou_{threshold}",
        f"R@1 at IoU {threshold}",
        partial(count_above, threshold=threshold),
        right_wrong=True,
        reads_scores=True,
    )
    for threshold in (0.3, 0.5, 0.7)
)
