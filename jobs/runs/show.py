"""Output of `tango runs ls`, `show` and `compare`."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from jobs.report.compare import On, compared_runs
from jobs.report.formatting import DASH, Table, latex_notes, markdown_notes, shortened
from jobs.report.tables.cells import cells_csv, cells_table, render_table
from jobs.results.cell_summary import CellSummary, parse_summary
from jobs.results.facts import FACTS_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.runs.found import FoundRun, Row, find_run, find_runs, state_of
from jobs.units import human_age, human_bytes
from pipeline.storage.copies import local_copy

_HEADER = ("run", "recipe", "model", "benchmark", "cells", "state", "score %", "size", "age")
_RIGHT = {"cells", "score %", "size", "age"}
_STAMP = len("20261122-220526")
_TIME = re.compile(r"\d{8}-\d{6}")
_AT_ONCE = 8
_FAILURES_SHOWN = 5


def runs_in(roots: Sequence[str]) -> list[Row]:
    """The runs of some directories or URLs, the newest last.

    Raises:
        FileNotFoundError: If one of them does not exist.
    """
    found = [run for root in roots for run in find_runs(root)]
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        states = list(workers.map(state_of, found))
    return sorted(states, key=lambda row: (row["started_at"] or "", row["run"]))


def _age(row: Row) -> str:
    """Time since a run began; "" if unknown."""
    if row["started_at"] is None:
        return ""
    age = datetime.now(UTC) - datetime.fromisoformat(row["started_at"])
    return human_age(max(0.0, age.total_seconds()))


def runs_table(rows: Sequence[Row], max_width: int | None = None) -> str:
    """One line per run and a last one with totals.

    Args:
        rows: From `runs_in`.
        max_width: Columns of the terminal; `None` for any number. Where the names do not fit, runs
            are named by the time at their beginning, which `tango runs show` takes as well.
    """
    lines, header, shrink = [], list(_HEADER), {"run", "recipe", "model", "benchmark"}
    for row in rows:
        recipe = (row["recipe"] or "").rpartition("/")[2].removesuffix(".yaml")
        ends = [f"{100 * one:.{len(row['scores']) == 1:d}f}" for one in sorted(row["scores"])]
        lines.append(
            [
                row["run"],
                recipe or DASH,
                row["model"] or DASH,
                "+".join(row["benchmarks"]) or DASH,
                str(row["cells"] or DASH),
                row["state"],
                "-".join(ends[:1] + ends[1:][-1:]) or DASH,
                human_bytes(row["bytes"]),
                _age(row).replace(" ", "") or DASH,
            ]
        )
    stamps = {line[0][:_STAMP] for line in lines}
    if max_width and Table(header, lines).width > max_width and len(stamps) == len(lines):
        lines = [[line[0][:_STAMP], *line[1:]] for line in lines]
        shrink.remove("run")
    plain = Table(header, lines).plain(right=_RIGHT, max_width=max_width, shrink=shrink)
    num_bytes = human_bytes(sum(row["bytes"] for row in rows))
    return "\n".join([*plain, "", f"{len(rows)} run(s), {num_bytes}"])


def shown(run: FoundRun, max_width: int | None = None) -> str:
    """Lines about a run, and the table of its cells.

    Args:
        run: From `find_run`.
        max_width: Columns of the terminal; `None` for any number.
    """
    row, facts = state_of(run), run.json(FACTS_FILE) or {}
    age, caches = _age(row), facts.get("caches") or []
    values = {
        "run": row["place"],
        **{name: row[name] or DASH for name in ("state", "recipe", "command", "model")},
        "benchmark": ", ".join(row["benchmarks"]) or DASH,
        "cells": row["cells"] or DASH,
        "started": age and f"{row['started_at'][:16].replace('T', ' ')} ({age} ago)",
        "size": human_bytes(row["bytes"]),
        "device": facts.get("device"),
        "commit": facts.get("git_commit"),
        "note": facts.get("note"),
        "took": facts.get("wall_s") and human_age(facts["wall_s"]),
        "caches": caches and f"{len(caches)}, the first {caches[0]}",
    }
    if row["state"] == "stopped":
        command = f"tango {row['command'] or 'sweep'}"
        values["go on"] = f"{command} {run.place}/job.yaml --resume {run.place}"
    lines = [f"{name + ':':<11} {value}" for name, value in values.items() if value]
    if row["state"] == "comparison" or SUMMARY_FILE not in run.files:
        return "\n".join(lines)
    summary = parse_summary(run.storage.read(SUMMARY_FILE), run.place)
    if summary.cells:
        lines += ["", render_table(summary.cells, max_width)]
    if reasons := summary.failures.reasons:
        lines.append(f"\n{summary.counts.num_failed} answers failed:")
        for reason in reasons[:_FAILURES_SHOWN]:
            text = f"  {reason.questions} {reason.status}: {reason.error}"
            lines.append(shortened(text, max_width or len(text)))
        if len(reasons) > _FAILURES_SHOWN:
            more = len(reasons) - _FAILURES_SHOWN
            lines.append(f"  and {more} more reasons, see failures.parquet")
    return "\n".join(lines)


def shown_json(run: FoundRun) -> str:
    """State, facts and summary of a run, for scripts; `null` for a damaged file."""
    names = [name for name in (FACTS_FILE, SUMMARY_FILE) if name in run.files]
    files = {name.removesuffix(".json"): run.json(name) for name in names}
    return json.dumps({**state_of(run), **files}, indent=2)


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
