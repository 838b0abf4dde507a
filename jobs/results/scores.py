"""Further accuracies of one cell: as a harness counts, and by group as papers print them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from jobs.results.quantities import ByGroup, CrossTable
from tango_core.benchmarks import facts_of
from tango_core.benchmarks.protocols.versions import listed_name
from tango_core.benchmarks.scoring.reports import macro_average, mean_score
from tango_core.metrics import accuracy_by_group

Groups = Sequence[Mapping[str, str]]


def read_groups(value: object) -> dict[str, str]:
    """One value of the column `groups`, as Parquet readers give it: JSON, a mapping, or pairs."""
    if isinstance(value, str):
        return {str(key): str(item) for key, item in json.loads(value).items()} if value else {}
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple, np.ndarray)):
        return {str(key): str(item) for key, item in value}
    return {}


def harness_accuracy(rows: pd.DataFrame, benchmark: str, protocol: str) -> float | None:
    """What the protocol's harness would print for these answers, faults included.

    A harness may count questions that have no right option; the strict accuracy does not.

    Args:
        rows: Answers of one cell; `harness_score` may be absent (runs of earlier versions).
        benchmark: Entry of `BENCHMARKS`.
        protocol: Name of the protocol the questions were put under.

    Returns:
        A share, in [-1, 1] where imported failures of VLMEvalKit cost a point; `None` if no score
        is known.
    """
    if "harness_score" not in rows:
        return None
    scores = [None if pd.isna(score) else float(score) for score in rows["harness_score"]]
    facts = facts_of(benchmark)
    known = facts.protocols.get(listed_name(facts.protocols, protocol))
    if facts.macro_group and known and known.macro:
        groups = [read_groups(value) for value in rows["groups"]]
        return macro_average(scores, groups, facts.macro_group)
    return mean_score(scores)


def macro_accuracy(correct: npt.NDArray[np.bool_], groups: Groups, benchmark: str) -> float | None:
    """Mean of the strict accuracies over a group's values, e.g. over the tasks of MLVU.

    Returns:
        `None` for benchmarks that nobody averages this way.
    """
    group = facts_of(benchmark).macro_group
    if group is None:
        return None
    return macro_average([float(right) for right in correct], groups, group)


def cross_accuracy(
    correct: npt.NDArray[np.bool_], clusters: npt.NDArray[Any], groups: Groups, benchmark: str
) -> CrossTable:
    """Break a benchmark down by two groups at once, as its authors do.

    Args:
        correct: (n,) strict outcomes.
        clusters: (n,) labels of clips.
        groups: n mappings.
        benchmark: Name of a benchmark; the groups are those of its `cross_table`.

    Returns:
        Outer group -> its value -> inner group -> its value -> accuracy with interval; empty for
        other benchmarks.
    """
    groups_of = facts_of(benchmark).cross_table
    if groups_of is None:
        return {}
    outer, inner = groups_of.rows, groups_of.columns
    table: dict[str, ByGroup] = {}
    for value in sorted({mapping[outer] for mapping in groups if outer in mapping}):
        chosen = [at for at, mapping in enumerate(groups) if mapping.get(outer) == value]
        parts = [{name: groups[at][name] for name in inner if name in groups[at]} for at in chosen]
        table[value] = accuracy_by_group(correct[chosen], clusters[chosen], parts)
    return {outer: table} if table else {}
