"""Differences to all tokens by group of the questions, corrected for how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.results.cell_summary import CellSummary
from tango_core.metrics import Comparison as ScoreDifference
from tango_core.metrics.holm import LEVEL, holm_adjusted


@dataclass(frozen=True)
class GroupDifference:
    """One cell against all tokens, on the questions with one value of a group.

    Attributes:
        cell: The cell.
        value: Of the group.
        paired: The difference, with whole clips as units.
        p_value: That of `paired`, corrected for all differences of the family (Holm).
    """

    cell: CellSummary
    value: str
    paired: ScoreDifference
    p_value: float

    @property
    def survives(self) -> bool:
        """Whether the corrected p value is below 0.05."""
        return self.p_value < LEVEL


@dataclass(frozen=True)
class Family:
    """All differences to all tokens in one metric of one benchmark, by the values of one group.

    They are looked at together, so their p values are corrected together.

    Attributes:
        benchmark: Entry of `BENCHMARKS`.
        metric: Name of the metric.
        group: Name of the group.
        members: In the order of the cells, then of the values.
    """

    benchmark: str
    metric: str
    group: str
    members: tuple[GroupDifference, ...]

    @property
    def num_surviving(self) -> int:
        """How many differences survive the correction."""
        return sum(member.survives for member in self.members)


def families_of(cells: Sequence[CellSummary]) -> list[Family]:
    """Every benchmark's differences by every group, the headline first.

    Args:
        cells: Of one run or of several; those without a comparison with all tokens are left out.
    """
    found: dict[tuple[str, str, str], list[tuple[CellSummary, str, ScoreDifference]]] = {}
    for cell in cells:
        by_metric = cell.versus_full.by_group if cell.versus_full else {}
        for metric in sorted(by_metric, key=lambda name: name != cell.metric):
            for group, values in by_metric[metric].items():
                members = found.setdefault((cell.benchmark, metric, group), [])
                members += [(cell, value, paired) for value, paired in values.items()]
    families = []
    for (benchmark, metric, group), members in found.items():
        adjusted = holm_adjusted([paired.p_value for _, _, paired in members])
        rows = zip(members, adjusted, strict=True)
        own = tuple(GroupDifference(*member, p) for member, p in rows)
        families.append(Family(benchmark, metric, group, own))
    return families
