"""Outcome of every question and cell of a benchmark, with the groups of questions.

A few bytes are kept per answer, so accuracies, break-downs and paired comparisons are exact
whatever the size of a run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise, product
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from jobs.results.answer_columns import (
    PRESENT,
    RIGHT,
    SCORED,
    AnswerColumns,
    Mask,
    Values,
    question_keys,
    read_groups,
)
from jobs.results.measurements import FIRST_TOKEN
from jobs.results.quantities import ByGroup, Comparison, CrossTable, DifferencesByGroup
from pipeline.progress.parts import Codes
from tango_core.benchmarks import facts_of
from tango_core.benchmarks.protocols.protocol import listed_name
from tango_core.benchmarks.protocols.subtitles import SHOWN
from tango_core.metrics import Comparison as ScoreDifference
from tango_core.metrics import Counted, Estimate, Metric, Questions, compare_clips

Bits = npt.NDArray[np.uint8]

# Values of groups that some questions have in common, one per group.
_Value = tuple[str, ...]
_Found = TypeVar("_Found")
_ASKED = {"clip": "int32", "group": "int32", "key": "uint64"}


class Outcomes:
    """The questions of one benchmark, and the outcome of each under every cell.

    Args:
        benchmark: Entry of `BENCHMARKS`.
        profile: Whether times are compared question by question.

    Attributes:
        metrics: Those of the benchmark, the headline first.
        groups: The different sets of groups that questions have, in the order in which they occur.
        num_clips: Clips that the questions are about.
        num_questions: Different questions.
    """

    def __init__(self, benchmark: str, *, profile: bool = False) -> None:
        self.groups: list[Mapping[str, str]] = []
        self.num_clips = self.num_questions = 0
        self._facts = facts_of(benchmark)
        self.metrics = tuple(self._facts.metrics)
        # What is kept of every answer.
        self._kept: dict[str, Callable[[AnswerColumns], npt.NDArray[Any]]] = {
            "bits": lambda answers: answers.bits,
            "harness": lambda answers: answers.numbers("harness_score"),
        }
        if any(metric.reads_scores for metric in self.metrics):
            self._kept["scores"] = lambda answers: answers.scores
        if profile:
            self._kept["ttft"] = lambda answers: answers.numbers("ttft_ms")
            self._kept["first_token"] = lambda answers: np.sum(
                [answers.numbers(name) for name in FIRST_TOKEN], axis=0
            )
        self._group_codes: dict[str, int] = {}
        self._questions: list[pd.DataFrame] = []
        self._pairs: dict[tuple[str, ...], tuple[Codes, Codes, dict[_Value, slice]]] = {}
        # Cell -> part by part the kept values, with the questions' numbers as index.
        self._answers: defaultdict[str, list[pd.DataFrame]] = defaultdict(list)

    def add(self, answers: AnswerColumns) -> None:
        """Add answers of this benchmark; they must be all answers about each of their clips."""
        keys = question_keys(answers.table)
        numbers, unique_keys = pd.factorize(keys)
        first = np.unique(numbers, return_index=True)[1]
        asked = {
            "clip": answers.clips[first] + self.num_clips,
            "group": self._codes_of_groups(answers)[first],
            "key": unique_keys,
        }
        self._questions.append(pd.DataFrame(asked).astype(_ASKED))
        index = (numbers + self.num_questions).astype(np.int32)
        kept = pd.DataFrame({name: of(answers) for name, of in self._kept.items()}, index=index)
        for number, (_, cell) in enumerate(answers.cell_names):
            self._answers[cell].append(kept[answers.cells == number])
        self.num_clips += len(answers.clip_names)
        self.num_questions += len(first)

    def _codes_of_groups(self, answers: AnswerColumns) -> Codes:
        """(n,) number of every row's set of groups."""
        codes, texts = answers.texts("groups")
        numbers = []
        for text in [*texts, None]:
            key = text or ""
            if key not in self._group_codes:
                self._group_codes[key] = len(self.groups)
                self.groups.append(read_groups(text))
            numbers.append(self._group_codes[key])
        return np.array(numbers, np.int64)[codes]

    @cached_property
    def asked(self) -> pd.DataFrame:
        """A row per question: numbers of its `clip` and set of groups (`group`), and its `key`."""
        none = pd.DataFrame({name: np.empty(0, kind) for name, kind in _ASKED.items()})
        return pd.concat([none, *self._questions], ignore_index=True)

    @property
    def cells(self) -> list[str]:
        """Names of the cells that have answers."""
        return list(self._answers)

    def bits(self, cell: str) -> Bits:
        """(q,) outcome of every question under a cell, 0 where it was not asked."""
        return self.row("bits", cell, np.uint8(0))

    def row(self, name: str, cell: str, absent: Any = np.nan) -> npt.NDArray[Any]:
        """(q,) one value per question under a cell: `harness`, or in profile mode `ttft`."""
        found = np.full(self.num_questions, absent)
        for part in self._answers.get(cell, ()):
            found[part.index] = part[name]
        return found

    def count(self, metric: Metric, cell: str) -> Counted:
        """What a metric averages under a cell."""
        bits = self.bits(cell)
        scores = self.row("scores", cell) if "scores" in self._kept else None
        return self._count(metric, (bits & SCORED) > 0, (bits & RIGHT) > 0, scores)

    def _count(
        self, metric: Metric, scored: Mask, right: Mask, scores: Values | None = None
    ) -> Counted:
        values = right.astype(np.float64) if scores is None else np.nan_to_num(scores)
        clips, codes = (self.asked[name].to_numpy() for name in ("clip", "group"))
        return metric.count(Questions(scored, right, values, clips, self.groups, codes))

    def harness_value(self, cell: str, protocol: str) -> float | None:
        """What the harness of the protocol would print for a cell; `None` if it is not known.

        A share, in [-1, 1] where imported failures of VLMEvalKit cost a point.
        """
        scores = self.row("harness", cell)
        known = ~np.isnan(scores)
        if self.metrics[0].unit != "question":
            known, scores = self._count(self.metrics[0], known, scores == 1)
        if not known.any():
            return None
        protocols = self._facts.protocols
        found = protocols.get(listed_name(protocols, protocol.removesuffix(SHOWN)))
        if found is None or not found.macro or not self._facts.macro_group:
            return float(scores[known].mean())
        values = [groups.get(self._facts.macro_group, "") for groups in self.groups]
        of_question = np.array(values, dtype=object)[self.asked["group"]]
        means = pd.Series(scores[known]).groupby(of_question[known]).mean()
        return float(means.drop("", errors="ignore").mean())

    def digest(self, cell: str) -> str:
        """Digest of the questions of a cell; "" if there are none."""
        keys = self.asked["key"][(self.bits(cell) & PRESENT) > 0]
        return f"{int(keys.sum()) % 2**64:016x}" if len(keys) else ""

    def estimate(self, metric: Metric, counted: Counted) -> Estimate | None:
        """A metric over all questions."""
        return self._estimates(metric, counted).get(())

    def by_group(self, metric: Metric, counted: Counted) -> ByGroup:
        """Group -> value -> a metric there, both in alphabetical order."""
        return self._by_group(partial(self._estimates, metric, counted))

    def cross(self, metric: Metric, counted: Counted) -> CrossTable:
        """Break a metric down by two groups at once, as the benchmark's authors do.

        Returns:
            Outer group -> its value -> inner group -> its value -> estimate; empty for benchmarks
            whose authors do not.
        """
        groups = self._facts.cross_table
        if groups is None:
            return {}
        values = self._estimates(metric, counted, groups.rows)
        table: dict[str, dict[str, dict[str, Estimate]]] = {value: {} for (value,) in values}
        for inner in sorted(groups.columns):
            found = self._estimates(metric, counted, groups.rows, inner)
            for (value, inner_value), estimate in found.items():
                table[value].setdefault(inner, {})[inner_value] = estimate
        return {groups.rows: table} if table else {}

    def difference(self, both: Mask, changes: Values) -> ScoreDifference | None:
        """The paired difference over all questions, with whole clips as units.

        Args:
            both: (q,) which questions have a value under both cells.
            changes: (q,) value under one cell minus that under the other, in [-1, 1]; other
                questions are ignored.
        """
        return self._differences(both, changes).get(())

    def differences(self, both: Mask, changes: Values) -> DifferencesByGroup:
        """Group -> value -> paired difference there, both in alphabetical order."""
        return self._by_group(partial(self._differences, both, changes))

    def _by_group(
        self, compute: Callable[[str], dict[_Value, _Found]]
    ) -> dict[str, dict[str, _Found]]:
        """What a function finds for the values of every group that is listed."""
        names = {name for mapping in self.groups for name in mapping}
        listed = sorted(names - set(self._facts.unlisted_groups))
        found = {name: compute(name) for name in listed}
        return {
            name: {value: one for (value,), one in values.items()}
            for name, values in found.items()
            if values
        }

    def _estimates(self, metric: Metric, counted: Counted, *names: str) -> dict[_Value, Estimate]:
        """The metric for every value of some groups."""

        def estimate(clips: Mapping[str, Values]) -> Estimate | None:
            return metric.estimate(clips["sum"], clips["asked"])

        return self._by_value(names, counted.counts, {"sum": counted.values}, estimate)

    def _differences(
        self, both: Mask, changes: Values, *names: str
    ) -> dict[_Value, ScoreDifference]:
        """The paired difference for every value of some groups."""

        def difference(clips: Mapping[str, Values]) -> ScoreDifference | None:
            changed = int(clips["rose"].sum()), int(clips["fell"].sum())
            return compare_clips(clips["gained"], clips["lost"], clips["asked"], changed=changed)

        gained, lost = np.maximum(changes, 0.0), np.maximum(-changes, 0.0)
        columns = {"gained": gained, "lost": lost, "rose": changes > 0, "fell": changes < 0}
        return self._by_value(names, both, columns, difference)

    def _by_value(
        self,
        names: Sequence[str],
        counts: Mask,
        columns: Mapping[str, npt.NDArray[Any]],
        compute: Callable[[Mapping[str, Values]], _Found | None],
    ) -> dict[_Value, _Found]:
        """What a function makes of sums per clip, for every value of some groups, in order.

        A question may have several values of a group (`Benchmark.several_valued`).

        Args:
            names: Names of the groups.
            counts: (q,) which questions count.
            columns: (q,) values that are summed per clip, and beside them `asked`, their number.
            compute: The function.
        """
        questions, pairs, slices = self._pairs_of(tuple(names))
        rows = counts[questions].nonzero()[0]
        size = int(pairs.max(initial=-1)) + 1
        sums = {"asked": np.bincount(pairs[rows], minlength=size).astype(np.float64)}
        for name, values in columns.items():
            sums[name] = np.bincount(pairs[rows], values[questions[rows]], size).astype(np.float64)
        found = {}
        for value, own in slices.items():
            computed = compute({name: column[own] for name, column in sums.items()})
            if computed is not None:
                found[value] = computed
        return found

    def _pairs_of(self, names: tuple[str, ...]) -> tuple[Codes, Codes, dict[_Value, slice]]:
        """Questions by the values of some groups and by clip.

        Returns:
            The question and the pair of value and clip of every row, and the pairs of every value.
        """
        if names not in self._pairs:
            values = [self._values_of(mapping, names) for mapping in self.groups]
            known = sorted({value for own in values for value in own})
            sets = [(at, known.index(value)) for at, own in enumerate(values) for value in own]
            of_set = pd.DataFrame(sets, columns=["group", "value"], dtype=np.int32)
            rows = self.asked[["clip", "group"]].reset_index(names="row").merge(of_set, on="group")
            pairs = rows.groupby(["value", "clip"])
            value_of_pair = pairs.size().index.get_level_values("value")
            starts = np.searchsorted(value_of_pair, np.arange(len(known) + 1)).tolist()
            slices = dict(zip(known, (slice(*ends) for ends in pairwise(starts)), strict=True))
            questions, numbers = (np.asarray(o, np.int64) for o in (rows["row"], pairs.ngroup()))
            self._pairs[names] = questions, numbers, slices
        return self._pairs[names]

    def _values_of(self, mapping: Mapping[str, str], names: Sequence[str]) -> list[_Value]:
        """Values that a set of groups has of some groups; none if it lacks one of them."""
        if not all(name in mapping for name in names):
            return []
        several = self._facts.several_valued
        parts = [mapping[n].split(", ") if n in several else [mapping[n]] for n in names]
        return list(dict.fromkeys(product(*parts)))


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
    # Index of this run's questions in the other one; -1 for those that it was not asked.
    place = pd.Index(theirs.asked["key"]).get_indexer(pd.Index(ours.asked["key"]))
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
        _speed_up(ours.row(name, cell), np.append(theirs.row(name, other), np.nan)[place])
        if profile
        else None
        for name in ("ttft", "first_token")
    )
    comparison = Comparison(paired[headline], ttft, first, also, by_group)
    return None if comparison == Comparison() else comparison


def _speed_up(ours: Values, theirs: Values) -> float | None:
    """Ratio of the median times, the other cell's over ours; `None` without a common question."""
    known = ~np.isnan(ours) & ~np.isnan(theirs)
    if not known.any() or not np.median(ours[known]) > 0:
        return None
    return float(np.median(theirs[known]) / np.median(ours[known]))
