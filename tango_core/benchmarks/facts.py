"""Small facts that a benchmark's class states about its tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperColumn:
    """The columns of a benchmark in the tables of papers on token pruning.

    Attributes:
        order: Rank among the benchmarks, the smallest first.
        group: Group of questions whose values have a column of their own; "" for none.
        values: These values, in the order of their columns; the overall accuracy follows them.
    """

    order: int
    group: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class CrossTable:
    """Two groups that a benchmark's authors break accuracy down by at once.

    Attributes:
        rows: Group whose values are the rows, e.g. `"duration"`.
        columns: Groups that are broken down inside each row.
    """

    rows: str
    columns: tuple[str, ...]
