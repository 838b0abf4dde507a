"""Outcome of every question and cell of a benchmark as arrays, with the groups of questions.

Sixty million answers take sixty megabytes, so accuracies, break-downs and paired comparisons are
exact whatever the size of a run. Where a benchmark has scores that are not right or wrong, they are
kept too, in eight bytes each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.results.answer_columns import (
    PRESENT,
    RIGHT,
    SCORED,
    AnswerColumns,
    Mask,
    Values,
    read_groups,
)
from jobs.results.measurements import FIRST_TOKEN, Measurements
from jobs.results.quantities import ByGroup, Comparison, CrossTable, DifferencesByGroup
from pipeline.progress.parts import Codes, Digests, digests_of, question_digest
from tango_core.benchmarks import facts_of
from tango_core.benchmarks.protocols.protocol import listed_name
from tango_core.benchmarks.protocols.subtitles import SHOWN
from tango_core.metrics import Comparison as ScoreDifference
from tango_core.metrics import Counted, Estimate, Metric, Questions, compare_clips

Bits = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.uint64]

# Values of groups that some questions have in common, one per group.
_Value = tuple[str, ...]
# What is known of every question: numbers of its clip and of its set of groups, its key (equal in
# all runs), digests of its prompt and of the frames that were shown (0 where not recorded).
_QUESTION: dict[str, npt.DTypeLike] = {
    "clip": np.int32,
    "group": np.int32,
    "key": "S16",
    "prompts": np.uint64,
    "frames": np.uint64,
}
# The times whose medians are compared between cells, in profile mode.
_TTFT, _FIRST = "ttft", "first"


class Outcomes:
    """The questions of one benchmark, and the outcome of each under every cell.

    Args:
        benchmark: Entry of `BENCHMARKS`.
        profile: Whether times are compared question by question.
        measurements: Receives the answers, too.

    Attributes:
        metrics: Those of the benchmark, the headline first.
        cells: Name of a cell -> its number.
        groups: The different sets of groups that questions have, in the order in which they occur.
        num_clips: Clips that the questions are about.
    """

    def __init__(
        self, benchmark: str, *, profile: bool = False, measurements: Measurements | None = None
    ) -> None:
        self.cells: dict[str, int] = {}
        self.groups: list[Mapping[str, str]] = []
        self.num_clips = 0
        self._benchmark, self._facts = benchmark, facts_of(benchmark)
        self._measurements = measurements
        self.metrics = tuple(self._facts.metrics)
        # What is kept of every answer.
        self._kept: dict[str, Callable[[AnswerColumns], npt.NDArray[Any]]]
        self._kept = {"bits": lambda answers: answers.bits}
        if any(metric.reads_scores for metric in self.metrics):
            self._kept["scores"] = lambda answers: answers.scores
        if self.metrics[0].unit != "question":
            self._kept["harness"] = lambda answers: answers.numbers("harness_score")
        if profile:
            self._kept[_TTFT] = lambda answers: answers.numbers("ttft_ms")
            self._kept[_FIRST] = lambda answers: np.sum(
                [answers.numbers(name) for name in FIRST_TOKEN], axis=0
            )
        # Name -> part by part a (cells, questions) matrix; the first parts may know fewer cells.
        self._matrices: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in self._kept}
        self._group_codes: dict[str, int] = {}
        self._parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _QUESTION}
        self._labels: dict[tuple[str, ...], _Labels] = {}

    def add(self, answers: AnswerColumns) -> None:
        """Take the answers about some clips of this benchmark, which come in no other table."""
        numbers, first, _ = answers.questions
        own_cells = [self.cells.setdefault(name, len(self.cells)) for _, name in answers.cell_names]
        slots = (np.array(own_cells, np.int64)[answers.cells], numbers)
        groups = self._groups_of(answers)
        if self._measurements:
            self._measurements.add(answers, groups, self.groups)
        part = {
            "clip": answers.clips[first] + self.num_clips,
            "group": groups[first],
            "key": question_keys(answers),
            "prompts": _digests(answers, "prompt_digest", numbers, len(first)),
            "frames": _digests(answers, "frames_digest", numbers, len(first)),
        }
        for name, values in part.items():
            self._parts[name].append(values.astype(_QUESTION[name]))
        self.num_clips += len(answers.clip_names)
        for name, kept in self._kept.items():
            matrix = np.full((len(self.cells), len(first)), _absent(name))
            matrix[slots] = kept(answers)
            self._matrices[name].append(matrix)

    def _groups_of(self, answers: AnswerColumns) -> Codes:
        """(n,) number of every row's set of groups."""
        codes, values = answers.texts("groups")
        numbers = []
        for value in [*values, None]:
            groups = read_groups(value)
            key = value if isinstance(value, str) else repr(sorted(groups.items()))
            if key not in self._group_codes:
                self._group_codes[key] = len(self.groups)
                self.groups.append(groups)
            numbers.append(self._group_codes[key])
        return np.array(numbers, np.int64)[codes]

    @cached_property
    def asked(self) -> dict[str, npt.NDArray[Any]]:
        """(q,) arrays of what is known of the questions: `clip`, `group`, `key` and digests."""
        return {
            name: np.concatenate([np.empty(0, kind), *self._parts[name]])
            for name, kind in _QUESTION.items()
        }

    @property
    def num_questions(self) -> int:
        """Different questions."""
        return len(self.asked["key"])

    def bits(self, cell: str) -> Bits:
        """(q,) outcome of every question under a cell, 0 where it was not asked."""
        return self._row("bits", cell)

    def _row(self, name: str, cell: str) -> npt.NDArray[Any]:
        """(q,) one value per question under a cell."""
        index = self.cells.get(cell, sys.maxsize)
        rows = [
            part[index] if index < len(part) else np.full(part.shape[1], _absent(name))
            for part in self._matrices[name]
        ]
        return np.concatenate([np.empty(0, np.uint8), *rows])

    def times(self, cell: str, name: str) -> Values:
        """(q,) time to the first token of every question under a cell, NaN where not known."""
        return self._row(name, cell)

    def count(self, metric: Metric, cell: str) -> Counted:
        """What a metric averages under a cell."""
        bits = self.bits(cell)
        scores = self._row("scores", cell) if "scores" in self._kept else None
        return self._count(metric, (bits & SCORED) > 0, (bits & RIGHT) > 0, scores)

    def _count(
        self, metric: Metric, scored: Mask, right: Mask, scores: Values | None = None
    ) -> Counted:
        values = right.astype(np.float64) if scores is None else np.nan_to_num(scores)
        asked = self.asked
        return metric.count(
            Questions(scored, right, values, asked["clip"], self.groups, asked["group"])
        )

    def harness_value(self, cell: str, protocol: str) -> float | None:
        """What the harness of the protocol would print for a cell; `None` if it is not known.

        A share, in [-1, 1] where imported failures of VLMEvalKit cost a point.
        """
        if "harness" in self._kept:
            scores = self._row("harness", cell)
            counts, values = self._count(self.metrics[0], ~np.isnan(scores), scores == 1)
            return float(values[counts].mean()) if counts.any() else None
        name = listed_name(self._facts.protocols, protocol.removesuffix(SHOWN))
        known, group = self._facts.protocols.get(name), self._facts.macro_group
        sums: dict[str, tuple[float, int]] = {}
        own = (self._benchmark, cell)
        found = self._measurements.harness_scores(own) if self._measurements else []
        for number, total, count in found:
            value = self.groups[number].get(group, "") if group and known and known.macro else "all"
            before, counted = sums.get(value, (0.0, 0))
            sums[value] = before + total, counted + count
        means = [total / count for value, (total, count) in sums.items() if value]
        return sum(means) / len(means) if means else None

    def digest(self, cell: str) -> str:
        """What stands for the questions of a cell; "" if there are none."""
        keys = self.asked["key"][(self.bits(cell) & PRESENT) > 0]
        if not len(keys):
            return ""
        return "".join(f"{int(half):016x}" for half in np.add.reduce(_halves(keys), axis=0))

    def estimate(self, metric: Metric, counted: Counted) -> Estimate | None:
        """A metric over all questions."""
        return self._by(()).estimates(metric, counted).get(())

    def by_group(self, metric: Metric, counted: Counted) -> ByGroup:
        """Group -> value -> a metric there, both in alphabetical order."""
        found = {name: self._by((name,)).estimates(metric, counted) for name in self._listed}
        return {name: _one_key(values) for name, values in found.items() if values}

    def cross(self, metric: Metric, counted: Counted) -> CrossTable:
        """Break a metric down by two groups at once, as the benchmark's authors do.

        Returns:
            Outer group -> its value -> inner group -> its value -> estimate; empty for benchmarks
            whose authors do not.
        """
        groups = self._facts.cross_table
        if groups is None:
            return {}
        values = sorted(self._by((groups.rows,)).estimates(metric, counted))
        table: dict[str, dict[str, dict[str, Estimate]]] = {value: {} for (value,) in values}
        for inner in sorted(groups.columns):
            found = self._by((groups.rows, inner)).estimates(metric, counted)
            for value, inner_value in sorted(found):
                table[value].setdefault(inner, {})[inner_value] = found[value, inner_value]
        return {groups.rows: table} if table else {}

    def difference(self, both: Mask, changes: Values) -> ScoreDifference | None:
        """The paired difference over all questions, with whole clips as units.

        Args:
            both: (q,) which questions have a value under both cells.
            changes: (q,) value under one cell minus that under the other, in [-1, 1]; what stands
                at other questions is ignored.
        """
        return self._by(()).differences(both, changes).get(())

    def differences(self, both: Mask, changes: Values) -> DifferencesByGroup:
        """Group -> value -> paired difference there, both in alphabetical order."""
        found = {name: self._by((name,)).differences(both, changes) for name in self._listed}
        return {name: _one_key(values) for name, values in found.items() if values}

    @cached_property
    def _listed(self) -> list[str]:
        """Groups that are listed, in alphabetical order."""
        names = {name for mapping in self.groups for name in mapping}
        return sorted(names - set(self._facts.unlisted_groups))

    def _by(self, names: tuple[str, ...]) -> _Labels:
        """Questions by the values of no group, of one, or of two; worked out once."""
        if names not in self._labels:
            of_set = [self._values(mapping, names) for mapping in self.groups]
            self._labels[names] = _Labels(of_set, self.asked["group"], self.asked["clip"])
        return self._labels[names]

    def _values(self, mapping: Mapping[str, str], names: Sequence[str]) -> list[_Value]:
        """What a set of groups says of some groups: nothing, a value, or several."""
        if not all(name in mapping for name in names):
            return []
        several = self._facts.several_valued
        parts = [mapping[n].split(", ") if n in several else [mapping[n]] for n in names]
        return list(dict.fromkeys(product(*parts)))


class _Labels:
    """The values that questions have of some groups, and how clips divide over them.

    A question may have several values of a group (`Benchmark.several_valued`).
    """

    def __init__(self, of_set: Sequence[Sequence[_Value]], codes: Codes, clips: Codes) -> None:
        numbers: dict[_Value, int] = {}
        widest = max([1, *map(len, of_set)])
        labels = np.full((len(of_set) + 1, widest), -1, np.int64)
        for at, values in enumerate(of_set):
            own = [numbers.setdefault(value, len(numbers)) for value in values]
            labels[at, : len(own)] = own
        of_question = labels[codes]
        self._rows, columns = (of_question >= 0).nonzero()
        num_clips = int(clips.max(initial=0)) + 1
        pairs = of_question[self._rows, columns] * num_clips + clips[self._rows]
        found, pair_of = np.unique(pairs, return_inverse=True)
        self._pair_of, self._size = pair_of.astype(np.int32), len(found)
        starts = np.searchsorted(found, np.arange(len(numbers) + 1) * num_clips)
        # Of every value its pairs with a clip.
        self._slices = {
            value: slice(*ends)
            for value, ends in zip(numbers, pairwise(starts.tolist()), strict=True)
        }

    def estimates(self, metric: Metric, counted: Counted) -> dict[_Value, Estimate]:
        """The metric for every value that a question which counts has."""
        asked, sums = self._per_pair(*counted)
        every = {v: metric.estimate(sums[own], asked[own]) for v, own in self._slices.items()}
        return {value: found for value, found in every.items() if found is not None}

    def differences(self, both: Mask, changes: Values) -> dict[_Value, ScoreDifference]:
        """The paired difference for every value of which some question counts."""
        asked, _ = self._per_pair(both, changes)
        num_rose, gained = self._per_pair(both & (changes > 0), changes)
        num_fell, lost = self._per_pair(both & (changes < 0), -changes)
        found = {}
        for value, own in self._slices.items():
            changed = int(num_rose[own].sum()), int(num_fell[own].sum())
            difference = compare_clips(gained[own], lost[own], asked[own], changed=changed)
            if difference is not None:
                found[value] = difference
        return found

    def _per_pair(self, counts: Mask, values: Values) -> tuple[Values, Values]:
        """How many questions count and the sum of their values, of every clip under every value."""
        counts, values = counts[self._rows], values[self._rows]
        pairs = self._pair_of[counts]
        return (
            np.bincount(pairs, minlength=self._size).astype(np.float64),
            np.bincount(pairs, weights=values[counts], minlength=self._size).astype(np.float64),
        )


def _one_key(found: Mapping[_Value, Any]) -> dict[str, Any]:
    """What was found by the values of one group, in alphabetical order."""
    return {value: found[(value,)] for (value,) in sorted(found)}


def _absent(name: str) -> Any:
    """What stands where an answer is absent."""
    return np.uint8(0) if name == "bits" else np.nan


def question_keys(answers: AnswerColumns) -> Digests:
    """(q,) one digest from that of the clip and that of the question, equal in all runs."""
    _, first, ids = answers.questions
    questions = np.array([question_digest(one) for one in ids], np.uint64)
    halves = _halves(digests_of(answers.clip_names)[answers.clips[first]]).copy()
    halves[:, 0] ^= questions
    halves[:, 1] += questions * np.uint64(0x9E3779B97F4A7C15)
    return halves.view("S16").reshape(-1)


def _halves(digests: Digests) -> Keys:
    """(q, 2) digests as numbers."""
    return np.ascontiguousarray(digests).view(np.uint64).reshape(-1, 2)


def _digests(answers: AnswerColumns, name: str, questions: Codes, size: int) -> Keys:
    """(size,) a column of hexadecimal digests as numbers, one per question; 0 if unknown."""
    codes, texts = answers.texts(name)
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


def compare_cells(
    ours: Outcomes, cell: str, theirs: Outcomes, other: str, *, profile: bool
) -> Comparison | None:
    """Compare two cells of a benchmark on the questions both were asked and whose answer is known.

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
        counts, values = ours.count(metric, cell)
        other_counts, other_values = theirs.count(metric, other)
        both = counts & np.append(other_counts, False)[place]
        changes = values - np.append(other_values, 0.0)[place]
        paired[metric.name] = ours.difference(both, changes)
        if groups := ours.differences(both, changes):
            by_group[metric.name] = groups
    headline = ours.metrics[0].name
    also = {name: one for name, one in paired.items() if one is not None and name != headline}
    ttft, first = (
        _speed_up(ours.times(cell, name), np.append(theirs.times(other, name), np.nan)[place])
        if profile
        else None
        for name in (_TTFT, _FIRST)
    )
    comparison = Comparison(paired[headline], ttft, first, also, by_group)
    return None if comparison == Comparison() else comparison


def places(ours: Outcomes, theirs: Outcomes) -> Codes:
    """(q,) where another run has the questions of this one; -1 for nowhere."""
    if ours is theirs:
        return np.arange(ours.num_questions)
    if not theirs.num_questions:
        return np.full(ours.num_questions, -1)
    keys, other_keys = ours.asked["key"], theirs.asked["key"]
    order = np.argsort(other_keys)
    ordered = other_keys[order]
    at = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return np.where(ordered[at] == keys, order[at], -1)


def _speed_up(ours: Values, theirs: Values) -> float | None:
    """How much sooner a cell is done than the other one: a ratio of medians.

    Returns:
        `None` if there is no question that both measured.
    """
    known = ~np.isnan(ours) & ~np.isnan(theirs)
    if not known.any() or not np.median(ours[known]) > 0:
        return None
    return float(np.median(theirs[known]) / np.median(ours[known]))
