"""Scores of a cell beside the headline: by groups as papers print them, and as harnesses count.

All of them are made from sums per clip or per value of a group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from jobs.results.quantities import ByGroup, CrossTable, DifferencesByGroup
from tango_core.benchmarks import facts_of
from tango_core.metrics import Comparison as ScoreDifference
from tango_core.metrics import Counted, Estimate, Metric, compare_clips

Groups = Sequence[Mapping[str, str]]
# The value of a group, or those of two.
_Value = tuple[str, ...]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


def read_groups(value: object) -> dict[str, str]:
    """One value of the column `groups`, as Parquet readers give it: JSON, a mapping, or pairs."""
    if isinstance(value, str):
        return {str(key): str(item) for key, item in json.loads(value).items()} if value else {}
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple, np.ndarray)):
        return {str(key): str(item) for key, item in value}
    return {}


class QuestionGroups:
    """Breaks outcomes down by the groups of the questions; what cells share is worked out once.

    Args:
        benchmark: Entry of `BENCHMARKS`.
        groups: The different sets of groups.
        codes: (q,) number of every question's set.
        clips: (q,) number of every question's clip.
    """

    def __init__(self, benchmark: str, groups: Groups, codes: Ints, clips: Ints) -> None:
        self._facts = facts_of(benchmark)
        self._groups, self._codes, self._clips = groups, codes, clips
        self._labels: dict[tuple[str, str | None], _Labels] = {}

    def by_group(self, metric: Metric, counted: Counted) -> ByGroup:
        """Group -> value -> a metric there, both in alphabetical order.

        Args:
            metric: The metric.
            counted: What it averages.
        """
        table = {name: self._of(name).estimates(metric, counted) for name in self._names}
        return {
            name: {value: found[(value,)] for (value,) in sorted(found)}
            for name, found in table.items()
            if found
        }

    def differences(self, both: Mask, changes: Floats) -> DifferencesByGroup:
        """Group -> value -> paired difference there, both in alphabetical order.

        Whole clips are the units, as in the difference over all questions.

        Args:
            both: (q,) which questions have a value under both cells.
            changes: (q,) value under this cell minus that under the other one, in [-1, 1]; what
                stands at other questions is ignored.
        """
        table = {name: self._of(name).differences(both, changes) for name in self._names}
        return {
            name: {value: found[(value,)] for (value,) in sorted(found)}
            for name, found in table.items()
            if found
        }

    @cached_property
    def _names(self) -> list[str]:
        """Groups that are listed, in alphabetical order."""
        names = {name for mapping in self._groups for name in mapping}
        return sorted(names - set(self._facts.unlisted_groups))

    def cross(self, metric: Metric, counted: Counted) -> CrossTable:
        """Break a metric down by two groups at once, as the benchmark's authors do.

        Returns:
            Outer group -> its value -> inner group -> its value -> estimate; empty for benchmarks
            whose authors do not.
        """
        groups_of = self._facts.cross_table
        if groups_of is None:
            return {}
        outer = groups_of.rows
        values = sorted(value for (value,) in self._of(outer).estimates(metric, counted))
        table: dict[str, dict[str, dict[str, Estimate]]] = {value: {} for value in values}
        for inner in sorted(groups_of.columns):
            found = self._of(outer, inner).estimates(metric, counted)
            for value, inner_value in sorted(found):
                table[value].setdefault(inner, {})[inner_value] = found[value, inner_value]
        return {outer: table} if table else {}

    def macro(self, counted: Counted) -> float | None:
        """Mean of the headline over a group's values, e.g. of accuracy over the tasks of MLVU.

        Returns:
            `None` for benchmarks that nobody averages this way.
        """
        group = self._facts.macro_group
        if group is None:
            return None
        asked, sums = self._of(group).sums(counted)
        means = [own / n for own, n in zip(sums, asked, strict=True) if n]
        return sum(means) / len(means) if means else None

    def _of(self, name: str, inner: str | None = None) -> _Labels:
        """Questions by the values of one group, or of two."""
        if (name, inner) not in self._labels:
            names = (name,) if inner is None else (name, inner)
            of_set = [self._values(mapping, names) for mapping in self._groups]
            self._labels[name, inner] = _Labels(of_set, self._codes, self._clips)
        return self._labels[name, inner]

    def _values(self, mapping: Mapping[str, str], names: Sequence[str]) -> list[_Value]:
        """What a set of groups says of some groups: nothing, a value, or several."""
        if not all(name in mapping for name in names):
            return []
        several = self._facts.several_valued
        parts = [mapping[n].split(", ") if n in several else [mapping[n]] for n in names]
        return list(dict.fromkeys(product(*parts)))


class _Labels:
    """The values that questions have of one or two groups, and how clips divide over them.

    A question may have several values of a group (`Benchmark.several_valued`).
    """

    def __init__(self, of_set: Sequence[Sequence[_Value]], codes: Ints, clips: Ints) -> None:
        numbers: dict[_Value, int] = {}
        widest = max([1, *map(len, of_set)])
        labels = np.full((len(of_set) + 1, widest), -1, np.int64)
        for at, values in enumerate(of_set):
            own = [numbers.setdefault(value, len(numbers)) for value in values]
            labels[at, : len(own)] = own
        self.values = list(numbers)
        of_question = labels[codes]
        self._rows, columns = (of_question >= 0).nonzero()
        num_clips = int(clips.max(initial=0)) + 1
        pairs = of_question[self._rows, columns] * num_clips + clips[self._rows]
        found, pair_of = np.unique(pairs, return_inverse=True)
        self._pair_of = pair_of.astype(np.int32)
        self._starts = np.searchsorted(found, np.arange(len(numbers) + 1) * num_clips)

    def sums(self, counted: Counted) -> tuple[list[float], list[float]]:
        """Per value of the group: how many questions count, and the sum of their values."""
        parts = self._per_pair(counted)
        asked, sums = ([float(part[own].sum()) for own in self._slices] for part in parts)
        return asked, sums

    def estimates(self, metric: Metric, counted: Counted) -> dict[tuple[str, ...], Estimate]:
        """The metric for every value that a question which counts has."""
        asked, sums = self._per_pair(counted)
        found = {}
        for value, own in zip(self.values, self._slices, strict=True):
            estimate = metric.estimate(sums[own], asked[own])
            if estimate is not None:
                found[value] = estimate
        return found

    def differences(self, both: Mask, changes: Floats) -> dict[tuple[str, ...], ScoreDifference]:
        """The paired difference for every value of which some question counts."""
        rose, fell = both & (changes > 0), both & (changes < 0)
        asked, _ = self._per_pair(Counted(both, changes))
        num_rose, gained = self._per_pair(Counted(rose, changes))
        num_fell, lost = self._per_pair(Counted(fell, -changes))
        found = {}
        for value, own in zip(self.values, self._slices, strict=True):
            changed = int(num_rose[own].sum()), int(num_fell[own].sum())
            difference = compare_clips(gained[own], lost[own], asked[own], changed=changed)
            if difference is not None:
                found[value] = difference
        return found

    @property
    def _slices(self) -> list[slice]:
        """Of every value of the group, its pairs with a clip."""
        return [slice(start, end) for start, end in pairwise(self._starts.tolist())]

    def _per_pair(self, counted: Counted) -> tuple[Floats, Floats]:
        """How many questions count and the sum of their values, of every clip under every value."""
        size = int(self._starts[-1])
        counts, values = (part[self._rows] for part in counted)
        pairs = self._pair_of[counts]
        return (
            np.bincount(pairs, minlength=size).astype(np.float64),
            np.bincount(pairs, weights=values[counts], minlength=size).astype(np.float64),
        )
