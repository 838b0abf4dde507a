"""The table of `tango runs ls`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from jobs.report.formatting import DASH, text_table
from jobs.runs.found import find_runs
from jobs.runs.state import RunState, age_of, state_of
from jobs.units import human_age, human_bytes
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock

_HEADER = ("run", "recipe", "model", "benchmark", "cells", "state", "score %", "size", "age")
_RIGHT = {"cells", "score %", "size", "age"}
_SHRINK = {"run", "recipe", "model", "bench"}
_NARROW = {"benchmark": "bench"}
_STAMP = len("20261122-220526")
_AT_ONCE = 8
# Runs whose time nobody knows come first.
_UNKNOWN = datetime.min.replace(tzinfo=UTC)


def runs_in(roots: Sequence[str], clock: Clock = SYSTEM_CLOCK) -> list[RunState]:
    """The runs of some directories or URLs, the newest last.

    Raises:
        FileNotFoundError: If one of them is not there.
    """
    found = [run for root in roots for run in find_runs(root)]
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        states = list(workers.map(lambda run: state_of(run, clock), found))
    return sorted(states, key=lambda one: (one.started or _UNKNOWN, one.run.name))


def runs_table(
    states: Sequence[RunState], max_width: int | None = None, clock: Clock = SYSTEM_CLOCK
) -> str:
    """One line per run and a last one with totals.

    Args:
        states: From `runs_in`.
        max_width: Columns of the terminal; `None` for any number. Where the names do not fit, runs
            are named by the time at their beginning, which `tango runs show` takes as well.
        clock: For ages.
    """
    rows = [_row(one, clock) for one in states]
    shrink = _SHRINK
    header: tuple[str, ...] = _HEADER
    if max_width is not None and _width(rows) > max_width:
        header = tuple(_NARROW.get(name, name) for name in header)
        stamps = [row[0][:_STAMP] for row in rows]
        if len(set(stamps)) == len(stamps):
            rows = [[stamp, *row[1:]] for stamp, row in zip(stamps, rows, strict=True)]
            shrink = _SHRINK - {"run"}
    num_bytes = human_bytes(sum(one.num_bytes for one in states))
    return "\n".join(
        [
            *text_table(header, rows, right=_RIGHT, max_width=max_width, shrink=shrink),
            "",
            f"{len(states)} run(s), {num_bytes}",
        ]
    )


def runs_json(states: Sequence[RunState]) -> str:
    """The same for scripts."""
    return json.dumps([one.to_json() for one in states], indent=2)


def score_text(scores: Sequence[float]) -> str:
    """A score in percent, or the lowest and the highest of several cells."""
    if not scores:
        return DASH
    if len(scores) == 1:
        return f"{100 * scores[0]:.1f}"
    return "-".join(f"{100 * value:.0f}" for value in (min(scores), max(scores)))


def _row(one: RunState, clock: Clock) -> list[str]:
    """The fields of a line."""
    age = age_of(one, clock)
    return [
        one.run.name,
        one.recipe.rpartition("/")[2].removesuffix(".yaml") or DASH,
        one.model or DASH,
        "+".join(one.benchmarks) or DASH,
        DASH if one.num_cells is None else str(one.num_cells),
        one.state,
        score_text(one.scores),
        human_bytes(one.num_bytes),
        DASH if age is None else human_age(age).replace(" ", ""),
    ]


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Columns that the whole table takes."""
    return max(map(len, text_table(_HEADER, rows)))
