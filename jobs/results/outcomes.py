"""Outcome of every question and cell of a benchmark as arrays, with the groups of questions.

Sixty million answers take sixty megabytes, so accuracies, break-downs and paired comparisons are
exact whatever the size of a run. Where a benchmark has scores that are not right or wrong, they are
kept too, in eight bytes each.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.results.answer_columns import PRESENT, RIGHT, SCORED, AnswerColumns, Mask, Values
from jobs.results.answer_table import FIRST_TOKEN, AnswerTable
from jobs.results.quantities import Comparison, DifferencesByGroup
from jobs.results.scores import QuestionGroups, read_groups
from pipeline.progress.parts import Codes, Digests, digests_of, question_digest
from tango_core.benchmarks import facts_of
from tango_core.benchmarks.protocols.protocol import listed_name
from tango_core.benchmarks.protocols.subtitles import SHOWN
from tango_core.metrics import Comparison as ScoreDifference
from tango_core.metrics import Metric, Questions, compare_clips

Bits = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.uint64]

# The times whose medians are compared between cells, in profile mode.
TTFT, FIRST = "ttft", "first"


class Outcomes:
    """The questions of one benchmark, and the outcome of each under every cell.

    Args:
        benchmark: Entry of `BENCHMARKS`.
        profile: Whether times are compared question by question.
        table: Receives the answers, too.

    Attributes:
        metrics: Those of the benchmark, the headline first.
        cells: Name of a cell -> its number.
        groups: The different sets of groups that questions have, in the order in which they occur.
    """

    def __init__(self, benchmark: str, *, profile: bool, table: AnswerTable | None = None) -> None:
        self.cells: dict[str, int] = {}
        self.groups: list[Mapping[str, str]] = []
        self._benchmark, self._facts, self._table = benchmark, facts_of(benchmark), table
        self.metrics = tuple(self._facts.metrics)
        # Name -> a value per question and cell, part by part, and what stands where one is absent.
        self._matrices: dict[str, list[npt.NDArray[Any]]] = {"bits": []}
        if any(metric.reads_scores for metric in self.metrics):
            self._matrices["scores"] = []
        if self.metrics[0].unit != "question":
            self._matrices["harness"] = []
        if profile:
            self._matrices |= {TTFT: [], FIRST: []}
        self._group_codes: dict[str, int] = {}
        self._num_clips = 0
        self._parts: dict[str, list[Any]] = {
            name: [] for name in ("clip", "digest", "question", "group", "prompt", "frames")
        }

    def add(self, columns: AnswerColumns) -> None:
        """Take the answers about some clips of this benchmark, which come in no other table."""
        numbers, first, ids = columns.questions
        own_cells = [self.cells.setdefault(name, len(self.cells)) for _, name in columns.cell_names]
        slots = (np.array(own_cells, np.int64)[columns.cells], numbers)
        groups = self._groups_of(columns)
        if self._table:
            self._table.add(self._benchmark, columns, self._num_clips, groups)
        part = {
            "clip": (columns.clips[first] + self._num_clips).astype(np.int32),
            "digest": digests_of(columns.clip_names),
            "question": np.array([question_digest(one) for one in ids], np.uint64),
            "group": groups[first],
            "prompt": _digests(columns, "prompt_digest", numbers, len(ids)),
            "frames": _digests(columns, "frames_digest", numbers, len(ids)),
        }
        for name, values in part.items():
            self._parts[name].append(values)
        self._num_clips += len(columns.clip_names)
        for name, matrices in self._matrices.items():
            values = _values_of(columns, name)
            absent = np.uint8(0) if name == "bits" else np.nan
            matrix = np.full((len(self.cells), len(ids)), absent)
            matrix[slots] = values
            matrices.append(matrix)

    def _groups_of(self, columns: AnswerColumns) -> npt.NDArray[np.int32]:
        """(n,) number of every row's set of groups."""
        codes, values = columns.texts("groups")
        numbers = []
        for value in [*values, None]:
            groups = read_groups(value)
            key = value if isinstance(value, str) else repr(sorted(groups.items()))
            if key not in self._group_codes:
                self._group_codes[key] = len(self.groups)
                self.groups.append(groups)
            numbers.append(self._group_codes[key])
        return np.array(numbers, np.int32)[codes]

    def bits(self, cell: str) -> Bits:
        """(q,) outcome of every question under a cell, 0 where it was not asked."""
        return self._row("bits", cell, np.uint8(0))

    def _row(self, name: str, cell: str, absent: Any = np.nan) -> npt.NDArray[Any]:
        """(q,) one value per question under a cell; the first parts may know fewer cells."""
        index = self.cells.get(cell, sys.maxsize)
        rows = [
            part[index] if index < len(part) else np.full(part.shape[1], absent)
            for part in self._matrices.get(name, ())
        ]
        if not rows:
            return np.full(self.num_questions, absent)
        return np.concatenate(rows)

    def questions(self, cell: str) -> Questions:
        """What a metric knows of the questions under a cell."""
        bits = self.bits(cell)
        return self._asked(
            (bits & SCORED) > 0,
            (bits & RIGHT) > 0,
            self._row("scores", cell) if "scores" in self._matrices else None,
        )

    def harness_value(self, cell: str, protocol: str) -> float | None:
        """What the harness of the protocol would print for a cell; `None` if it is not known."""
        if "harness" not in self._matrices:
            return self._mean_harness_score(cell, protocol)
        scores = self._row("harness", cell)
        counts, values = self.metrics[0].count(self._asked(~np.isnan(scores), scores == 1, None))
        return float(values[counts].mean()) if counts.any() else None

    def _mean_harness_score(self, cell: str, protocol: str) -> float | None:
        """A share, in [-1, 1] where imported failures of VLMEvalKit cost a point."""
        found = self._table.harness_scores(self._benchmark, cell) if self._table else []
        name = listed_name(self._facts.protocols, protocol.removesuffix(SHOWN))
        known, group = self._facts.protocols.get(name), self._facts.macro_group
        sums: dict[str, tuple[float, int]] = {}
        for number, total, count in found:
            value = self.groups[number].get(group, "") if group and known and known.macro else "all"
            before, counted = sums.get(value, (0.0, 0))
            sums[value] = before + total, counted + count
        means = [total / count for value, (total, count) in sums.items() if value]
        return sum(means) / len(means) if means else None

    def _asked(self, scored: Mask, right: Mask, scores: Values | None) -> Questions:
        """The questions with what became of them."""
        known = right.astype(np.float64) if scores is None else np.nan_to_num(scores)
        return Questions(scored, right, known, self.clip, self.groups, self.group)

    def times(self, cell: str, name: str) -> Values:
        """(q,) `TTFT` or `FIRST` of every question under a cell, NaN where it is not known."""
        return self._row(name, cell)

    @property
    def num_questions(self) -> int:
        """Different questions."""
        return len(self.clip)

    @property
    def num_clips(self) -> int:
        """Clips that they are about."""
        return self._num_clips

    @cached_property
    def clip(self) -> npt.NDArray[np.int32]:
        """(q,) number of every question's clip."""
        return _concatenated(self._parts["clip"], np.int32)

    @cached_property
    def group(self) -> npt.NDArray[np.int32]:
        """(q,) number of every question's set of groups."""
        return _concatenated(self._parts["group"], np.int32)

    @cached_property
    def question_groups(self) -> QuestionGroups:
        """What breaks numbers down by the groups of these questions."""
        return QuestionGroups(self._benchmark, self.groups, self.group, self.clip)

    @cached_property
    def prompt(self) -> Keys:
        """(q,) digest of the prompt; 0 where it was not recorded."""
        return _concatenated(self._parts["prompt"], np.uint64)

    @cached_property
    def frames(self) -> Keys:
        """(q,) digest of the frames that were shown; 0 where it was not recorded."""
        return _concatenated(self._parts["frames"], np.uint64)

    @cached_property
    def keys(self) -> Digests:
        """(q,) digests of clip and question, equal in all runs."""
        digests = _concatenated(self._parts["digest"], "S16")
        return question_keys(digests[self.clip], _concatenated(self._parts["question"], np.uint64))

    def per_clip(self, questions: Mask, values: Values | None = None) -> Values:
        """(c,) how many of some questions every clip has, or the sum of their values."""
        own = None if values is None else values[questions]
        sums = np.bincount(self.clip[questions], weights=own, minlength=self.num_clips)
        return sums.astype(np.float64)

    def digest(self, cell: str) -> str:
        """What stands for the questions of a cell; "" if there are none."""
        keys = self.keys[(self.bits(cell) & PRESENT) > 0]
        if not len(keys):
            return ""
        halves = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, 2)
        return "".join(f"{int(half):016x}" for half in np.add.reduce(halves, axis=0))


def question_keys(clips: Digests, questions: Keys) -> Digests:
    """(q,) one digest from that of the clip and that of the question."""
    halves = np.ascontiguousarray(clips).view(np.uint64).reshape(-1, 2).copy()
    halves[:, 0] ^= questions
    halves[:, 1] += questions * np.uint64(0x9E3779B97F4A7C15)
    return halves.view("S16").reshape(-1)


def _digests(columns: AnswerColumns, name: str, questions: Codes, size: int) -> Keys:
    """(size,) a column of hexadecimal digests as numbers, one per question; 0 if unknown."""
    codes, texts = columns.texts(name)
    numbers = np.array([*(_number(text) for text in texts), 0], np.uint64)[codes]
    found = np.zeros(size, np.uint64)
    known = numbers != 0
    found[questions[known][::-1]] = numbers[known][::-1]  # the first one counts
    return found


def _number(text: object) -> int:
    """A digest as a number; other texts by their own digest."""
    try:
        return int(str(text), 16) % 2**64
    except ValueError:
        return question_digest(str(text))


def _values_of(columns: AnswerColumns, name: str) -> npt.NDArray[Any]:
    """(n,) what a matrix holds of every answer."""
    if name == "bits":
        return columns.bits
    if name == "scores":
        return columns.scores
    names = {"harness": ("harness_score",), TTFT: ("ttft_ms",), FIRST: FIRST_TOKEN}[name]
    return np.asarray(np.sum([columns.numbers(one) for one in names], axis=0))


def _concatenated(parts: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    """All parts as one array."""
    return np.concatenate([np.empty(0, dtype), *parts])


def compare_cells(
    ours: Outcomes, cell: str, theirs: Outcomes, other: str, *, profile: bool
) -> Comparison | None:
    """Compare two cells on the questions both were asked and whose answer is known.

    In profile mode also their speed: the other's median time over this cell's, on questions that
    both measured, for the language model alone and for vision, compression and language model
    together (as published speed-ups count).

    Args:
        ours: Outcomes of this cell's run, one benchmark.
        cell: This cell.
        theirs: Outcomes of the other cell's run, same benchmark.
        other: The other cell.
        profile: Whether both were measured in profile mode on one kind of device.

    Returns:
        Only the speed-ups if the two have no such question in common, and `None` without these.
    """
    place = places(ours, theirs)
    paired: dict[str, ScoreDifference | None] = {}
    by_group: dict[str, DifferencesByGroup] = {}
    for metric in ours.metrics:
        both, changes = _changes(metric, ours, cell, (theirs, other), place)
        paired[metric.name] = _paired(ours, both, changes)
        if groups := ours.question_groups.differences(both, changes):
            by_group[metric.name] = groups
    headline = ours.metrics[0].name
    also = {name: one for name, one in paired.items() if one is not None and name != headline}
    ratios: list[float | None] = [None, None]
    if profile:
        other_bits = np.append(theirs.bits(other), 0).astype(np.uint8)[place]
        both = ((ours.bits(cell) & PRESENT) > 0) & ((other_bits & PRESENT) > 0)
        ratios = [
            _speed_up(
                ours.times(cell, names)[both],
                np.append(theirs.times(other, names), np.nan)[place][both],
            )
            for names in (TTFT, FIRST)
        ]
    comparison = Comparison(paired[headline], ratios[0], ratios[1], also, by_group)
    return None if comparison == Comparison() else comparison


def _changes(
    metric: Metric, ours: Outcomes, cell: str, versus: tuple[Outcomes, str], place: Codes
) -> tuple[Mask, Values]:
    """(q,) where one metric has a value under both cells, and (q,) by how much it changes there."""
    theirs, other = versus
    counts, values = metric.count(ours.questions(cell))
    other_counts, other_values = metric.count(theirs.questions(other))
    both = counts & np.append(other_counts, False)[place]
    return both, values - np.append(other_values, 0.0)[place]


def _paired(ours: Outcomes, both: Mask, changes: Values) -> ScoreDifference | None:
    """The difference over all questions."""
    rose, fell = both & (changes > 0), both & (changes < 0)
    return compare_clips(
        ours.per_clip(rose, changes),
        ours.per_clip(fell, -changes),
        ours.per_clip(both),
        changed=(int(rose.sum()), int(fell.sum())),
    )


def places(ours: Outcomes, theirs: Outcomes) -> Codes:
    """(q,) where another run has the questions of this one; -1 for nowhere."""
    if ours is theirs:
        return np.arange(ours.num_questions)
    if not theirs.num_questions:
        return np.full(ours.num_questions, -1)
    order = np.argsort(theirs.keys)
    ordered = theirs.keys[order]
    at = np.minimum(np.searchsorted(ordered, ours.keys), len(ordered) - 1)
    return np.where(ordered[at] == ours.keys, order[at], -1)


def _speed_up(ours: Values, theirs: Values) -> float | None:
    """How much sooner a cell is done than the other one: a ratio of medians.

    Returns:
        `None` if there is no question that both measured.
    """
    known = ~np.isnan(ours) & ~np.isnan(theirs)
    if not known.any() or not np.median(ours[known]) > 0:
        return None
    return float(np.median(theirs[known]) / np.median(ours[known]))
