"""Accuracies of a cell beside the headline: by groups as papers print them, and as harnesses count.

All of them are made from counts per clip or per value of a group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from jobs.results.answer_columns import AnswerColumns, by_code
from jobs.results.quantities import ByGroup, CrossTable
from tango_core.benchmarks import facts_of
from tango_core.benchmarks.protocols.subtitles import SHOWN
from tango_core.benchmarks.protocols.versions import listed_name
from tango_core.metrics import Accuracy, accuracy_of_clips

Groups = Sequence[Mapping[str, str]]
Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]


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
        groups: The different sets of groups.
        codes: (q,) number of every question's set.
        clips: (q,) number of every question's clip.
    """

    def __init__(self, groups: Groups, codes: Ints, clips: Ints) -> None:
        self._groups, self._codes, self._clips = groups, codes, clips
        self._labels: dict[tuple[str, str | None], _Labels] = {}

    def by_group(self, scored: Mask, right: Mask) -> ByGroup:
        """Group -> value -> accuracy, both in alphabetical order.

        Args:
            scored: (q,) questions that count.
            right: (q,) questions answered correctly.
        """
        names = sorted({name for mapping in self._groups for name in mapping})
        table = {name: self._of(name).accuracies(scored, right) for name in names}
        return {
            name: {value: found[(value,)] for (value,) in sorted(found)}
            for name, found in table.items()
            if found
        }

    def cross(self, scored: Mask, right: Mask, benchmark: str) -> CrossTable:
        """Break a benchmark down by two groups at once, as its authors do.

        Returns:
            Outer group -> its value -> inner group -> its value -> accuracy with interval; empty
            for benchmarks whose authors do not.
        """
        groups_of = facts_of(benchmark).cross_table
        if groups_of is None:
            return {}
        outer = groups_of.rows
        values = sorted(value for (value,) in self._of(outer).accuracies(scored, right))
        table: dict[str, dict[str, dict[str, Accuracy]]] = {value: {} for value in values}
        for inner in sorted(groups_of.columns):
            found = self._of(outer, inner).accuracies(scored, right)
            for value, inner_value in sorted(found):
                table[value].setdefault(inner, {})[inner_value] = found[value, inner_value]
        return {outer: table} if table else {}

    def macro(self, scored: Mask, right: Mask, benchmark: str) -> float | None:
        """Mean of the strict accuracies over a group's values, e.g. over the tasks of MLVU.

        Returns:
            `None` for benchmarks that nobody averages this way.
        """
        group = facts_of(benchmark).macro_group
        if group is None:
            return None
        asked, rights = self._of(group).counts(scored, right)
        means = [int(r) / int(n) for r, n in zip(rights, asked, strict=True) if n]
        return sum(means) / len(means) if means else None

    def _of(self, name: str, inner: str | None = None) -> _Labels:
        """Questions by the values of one group, or of two."""
        if (name, inner) not in self._labels:
            names = (name,) if inner is None else (name, inner)
            self._labels[name, inner] = _Labels(names, self._groups, self._codes, self._clips)
        return self._labels[name, inner]


class _Labels:
    """The values that questions have of one or two groups, and how clips divide over them."""

    def __init__(self, names: Sequence[str], groups: Groups, codes: Ints, clips: Ints) -> None:
        numbers: dict[tuple[str, ...], int] = {}
        of_set = [
            numbers.setdefault(tuple(mapping[name] for name in names), len(numbers))
            if all(name in mapping for name in names)
            else -1
            for mapping in groups
        ]
        self.values = list(numbers)
        labels = np.array([*of_set, -1], np.int64)[codes]
        self._rows = (labels >= 0).nonzero()[0]
        pairs = labels[self._rows] * (int(clips.max(initial=0)) + 1) + clips[self._rows]
        found, pair_of = np.unique(pairs, return_inverse=True)
        self._pair_of = pair_of.astype(np.int32)
        first = np.arange(len(numbers) + 1) * (int(clips.max(initial=0)) + 1)
        self._starts = np.searchsorted(found, first)

    def counts(
        self, scored: Mask, right: Mask
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Per value: questions that count, and of these the right ones."""
        asked, rights = self._per_pair(scored, right)
        ends = (np.append(0, np.cumsum(part)) for part in (asked, rights))
        one, other = (np.diff(end[self._starts]) for end in ends)
        return one, other

    def accuracies(self, scored: Mask, right: Mask) -> dict[tuple[str, ...], Accuracy]:
        """Accuracy of every value that any question has."""
        asked, rights = self._per_pair(scored, right)
        found = {}
        for number, value in enumerate(self.values):
            own = slice(self._starts[number], self._starts[number + 1])
            accuracy = accuracy_of_clips(rights[own], asked[own])
            if accuracy is not None:
                found[value] = accuracy
        return found

    def _per_pair(
        self, scored: Mask, right: Mask
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Questions that count and right ones, of every clip under every value."""
        size = int(self._starts[-1])
        counts = scored[self._rows]
        rights = counts & right[self._rows]
        return (
            np.bincount(self._pair_of[counts], minlength=size),
            np.bincount(self._pair_of[rights], minlength=size),
        )


class HarnessScores:
    """What the protocol's harness would print for the answers, faults included.

    A harness may count questions that have no right option; the strict accuracy does not.
    """

    def __init__(self, benchmark: str) -> None:
        self._facts = facts_of(benchmark)
        # Cell -> value of the group that the benchmark averages over -> sum and number of scores.
        self._sums: dict[str, dict[str | None, tuple[float, int]]] = {}

    def add(self, columns: AnswerColumns, groups: Groups, codes: Ints) -> None:
        """Take some answers; `harness_score` may be absent (runs of earlier versions).

        Args:
            columns: The answers.
            groups: The different sets of groups.
            codes: (n,) number of every answer's set.
        """
        if not columns.has("harness_score"):
            return
        scores, group = columns.numbers("harness_score"), self._facts.macro_group
        sets, which = np.unique(codes, return_inverse=True)
        of_set = [groups[one].get(group) if group else None for one in sets.tolist()]
        numbers = {value: number for number, value in enumerate(dict.fromkeys(of_set))}
        values, own = list(numbers), np.array([numbers[value] for value in of_set])[which]
        for cell, rows in by_code(columns.cells, (~np.isnan(scores)).nonzero()[0]):
            sums = self._sums.setdefault(columns.cell_names[cell][1], {})
            for number, part in by_code(own, rows):
                value = values[number]
                total, count = sums.get(value, (0.0, 0))
                sums[value] = (total + sum(scores[part].tolist()), count + len(part))

    def value(self, cell: str, protocol: str) -> float | None:
        """The harness's accuracy of a cell.

        Args:
            cell: Name of the cell.
            protocol: Name of the protocol the questions were put under.

        Returns:
            A share, in [-1, 1] where imported failures of VLMEvalKit cost a point; `None` if no
            score is known.
        """
        sums = self._sums.get(cell, {})
        name = listed_name(self._facts.protocols, protocol.removesuffix(SHOWN))
        known = self._facts.protocols.get(name)
        if self._facts.macro_group and known and known.macro:
            means = [total / count for value, (total, count) in sums.items() if value is not None]
            return sum(means) / len(means) if means else None
        count = sum(count for _, count in sums.values())
        return sum(total for total, _ in sums.values()) / count if count else None
