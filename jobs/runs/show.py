"""Output of `tango runs ls`, `show`, `compare` and `replicates`."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from jobs.report.compare import On, compared_runs
from jobs.report.formatting import DASH, Table, latex_notes, markdown_notes, shortened
from jobs.report.replicates import report_replicates
from jobs.report.tables.cells import cells_csv, cells_table, render_table
from jobs.results.cell_summary import CellSummary, RunSummary, parse_summary
from jobs.results.facts import FACTS_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.runs.found import FoundRun, RunState, find_run, find_runs, state_of
from jobs.units import human_age, human_bytes
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import place

_HEADER = ("run", "recipe", "model", "benchmark", "cells", "state", "score %", "size", "age")
_RIGHT = {"cells", "score %", "size", "age"}
_SHRINK = {"run", "recipe", "model", "bench"}
_STAMP = len("20261122-220526")
_TIME = re.compile(r"\d{8}-\d{6}")
_AT_ONCE = 8
# Runs without a known start come first.
_UNKNOWN = datetime.min.replace(tzinfo=UTC)


def runs_in(roots: Sequence[str]) -> list[RunState]:
    """The runs of some directories or URLs, the newest last.

    Raises:
        FileNotFoundError: If one of them does not exist.
    """
    found = [run for root in roots for run in find_runs(root)]
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        states = list(workers.map(state_of, found))
    return sorted(states, key=lambda one: (one.started or _UNKNOWN, one.run.name))


def runs_table(states: Sequence[RunState], max_width: int | None = None) -> str:
    """One line per run and a last one with totals.

    Args:
        states: From `runs_in`.
        max_width: Columns of the terminal; `None` for any number. Where the names do not fit, runs
            are named by the time at their beginning, which `tango runs show` takes as well.
    """
    rows = [_row(one) for one in states]
    header, shrink = list(_HEADER), _SHRINK
    if max_width is not None and Table(_HEADER, rows).width > max_width:
        header = ["bench" if name == "benchmark" else name for name in header]
        stamps = {row[0][:_STAMP] for row in rows}
        if len(stamps) == len(rows):
            rows = [[row[0][:_STAMP], *row[1:]] for row in rows]
            shrink = _SHRINK - {"run"}
    lines = Table(header, rows).plain(right=_RIGHT, max_width=max_width, shrink=shrink)
    num_bytes = human_bytes(sum(one.num_bytes for one in states))
    return "\n".join([*lines, "", f"{len(states)} run(s), {num_bytes}"])


def runs_json(states: Sequence[RunState]) -> str:
    """The runs as JSON."""
    return json.dumps([one.to_json() for one in states], indent=2)


def score_text(scores: Sequence[float]) -> str:
    """A score in percent, or the lowest and the highest of several cells."""
    if not scores:
        return DASH
    if len(scores) == 1:
        return f"{100 * scores[0]:.1f}"
    return "-".join(f"{100 * value:.0f}" for value in (min(scores), max(scores)))


def _row(one: RunState) -> list[str]:
    """The fields of a line."""
    return [
        one.run.name,
        one.recipe.rpartition("/")[2].removesuffix(".yaml") or DASH,
        one.model or DASH,
        "+".join(one.benchmarks) or DASH,
        DASH if one.num_cells is None else str(one.num_cells),
        one.state,
        score_text(one.scores),
        human_bytes(one.num_bytes),
        DASH if one.age_s is None else human_age(one.age_s).replace(" ", ""),
    ]


_FAILURES_SHOWN = 5


def shown(run: FoundRun, max_width: int | None = None) -> str:
    """Lines about a run, and the table of its cells.

    Args:
        run: From `find_run`.
        max_width: Columns of the terminal; `None` for any number.
    """
    lines = [f"{name + ':':<11} {value}" for name, value in _facts(state_of(run))]
    summary = _summary(run)
    if summary is not None:
        if summary.cells:
            lines += ["", render_table(summary.cells, max_width)]
        lines += list(_failures(summary, max_width))
    return "\n".join(lines)


def shown_json(run: FoundRun) -> str:
    """State, facts and summary of a run, for scripts; `null` for a damaged file."""
    plain = state_of(run).to_json()
    for name in (FACTS_FILE, SUMMARY_FILE):
        if name in run.files:
            plain[name.removesuffix(".json")] = run.json(name)
    return json.dumps(plain, indent=2)


def _facts(state: RunState) -> Iterator[tuple[str, str]]:
    """Names and values of the lines."""
    run = state.run
    facts = run.json(FACTS_FILE) or {}
    yield "run", str(run.place)
    yield "state", state.state
    yield "recipe", state.recipe or DASH
    yield "command", state.command or DASH
    yield "model", state.model or DASH
    yield "benchmark", ", ".join(state.benchmarks) or DASH
    yield "cells", DASH if state.num_cells is None else str(state.num_cells)
    if state.started is not None and state.age_s is not None:
        yield "started", f"{state.started:%Y-%m-%d %H:%M} ({human_age(state.age_s)} ago)"
    yield "size", f"{human_bytes(state.num_bytes)}"
    for name, key in (("device", "device"), ("commit", "git_commit"), ("note", "note")):
        if facts.get(key):
            yield name, str(facts[key])
    if facts.get("wall_s"):
        yield "took", human_age(facts["wall_s"])
    if facts.get("caches"):
        yield "caches", f"{len(facts['caches'])}, the first {facts['caches'][0]}"
    if state.state == "stopped":
        yield "go on", f"tango {state.command or 'sweep'} {run.place}/job.yaml --resume {run.place}"


def _summary(run: FoundRun) -> RunSummary | None:
    """The numbers of a run; `None` without any, and for a comparison of runs."""
    if SUMMARY_FILE not in run.files:
        return None
    if (run.json(SUMMARY_FILE) or {}).get("kind") == "comparison":
        return None
    return parse_summary(run.storage.read(SUMMARY_FILE), run.place)


def _failures(summary: RunSummary, max_width: int | None) -> Iterator[str]:
    """Reasons of failed answers."""
    reasons = summary.failures.reasons
    if reasons:
        yield f"\n{summary.counts.num_failed} answers failed:"
    for reason in reasons[:_FAILURES_SHOWN]:
        text = f"  {reason.questions} {reason.status}: {reason.error}"
        yield shortened(text, max_width or len(text))
    if len(reasons) > _FAILURES_SHOWN:
        yield f"  and {len(reasons) - _FAILURES_SHOWN} more reasons, see failures.parquet"


def compared(
    texts: Sequence[str],
    root: str,
    format_: Literal["terminal", "markdown", "latex", "csv"] = "terminal",
    *,
    baselines: Sequence[str] = (),
    on: On = "common",
    max_width: int | None = None,
) -> str:
    """Format the cells of several runs as one table with notes; writes nothing.

    Args:
        texts: Runs, as `find_run` takes them.
        root: Directory or URL of runs that are named without one.
        format_: Form of the table; `csv` holds all figures unrounded and no notes.
        baselines: Methods that cells are compared with besides `full`.
        on: Questions that count; see `jobs.report.compare.report_runs`.
        max_width: Columns of the terminal; `None` for any number.

    Raises:
        FileNotFoundError: If a run is not there, or has no results.
        ValueError: If the runs cannot be compared.
    """
    places = [find_run(text, root).place for text in texts]
    with ExitStack() as copies:
        folders = [copies.enter_context(local_copy(place)) for place in places]
        found = compared_runs(folders, baselines=baselines, on=on)
    if format_ == "csv":
        return cells_csv(found.cells).rstrip("\n")
    cells = _with_short_names(found.cells)
    table = cells_table(cells, brief=True)
    if format_ == "latex":
        return "\n".join([table.latex(), *latex_notes(found.notes)])
    if format_ == "markdown":
        return "\n\n".join([table.markdown(), *markdown_notes(found.notes)])
    lines = [render_table(cells, max_width)]
    for note in found.notes:
        lines += ["", *textwrap.wrap(note, max_width or 100)]
    return "\n".join(lines)


def _with_short_names(cells: Sequence[CellSummary]) -> Sequence[CellSummary]:
    """The cells with runs named by the time at their beginning, if that is unambiguous."""
    names = {cell.run_id: cell.run_id[:_STAMP] for cell in cells}
    if len(set(names.values())) < len(names) or not all(map(_TIME.fullmatch, names.values())):
        return cells
    return [replace(cell, run_id=names[cell.run_id]) for cell in cells]


def replicated(
    texts: Sequence[str], root: str, output: str, *, max_width: int | None = None
) -> str:
    """Write the comparison of replicates, and return its summary for the terminal.

    Args:
        texts: Runs, as `find_run` takes them.
        root: Directory or URL of runs that are named without one.
        output: Directory or URL to write to.
        max_width: Columns of the terminal; `None` for any number.

    Raises:
        FileNotFoundError: If a run is not there, or has no results.
        ValueError: If there are fewer than two runs, or they have no cell in common.
    """
    places = [find_run(text, root).place for text in texts]
    target = place(output)
    with ExitStack() as copies:
        folders = [copies.enter_context(local_copy(one)) for one in places]
        into = copies.enter_context(local_copy(target, lambda name: False))
        page, sentences = report_replicates(folders, into)
    lines = []
    for text in sentences:
        lines += textwrap.wrap(text, max_width or 100, subsequent_indent="  ")
    return "\n".join([*lines, "", f"table: {target / page.name}"])
