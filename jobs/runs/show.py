"""All about one run, from its small files: `tango runs show`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jobs.report.formatting import DASH, shortened
from jobs.report.tables.cells import render_table
from jobs.results.facts import FACTS_FILE
from jobs.results.run_summary import RunSummary
from jobs.results.summary import SUMMARY_FILE
from jobs.runs.found import FoundRun
from jobs.runs.state import RunState, age_of, state_of
from jobs.units import human_age, human_bytes
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock

_FAILURES_SHOWN = 5


def shown(run: FoundRun, max_width: int | None = None, clock: Clock = SYSTEM_CLOCK) -> str:
    """Lines about a run, and the table of its cells.

    Args:
        run: From `find_run`.
        max_width: Columns of the terminal; `None` for any number.
        clock: For its age.
    """
    state = state_of(run, clock)
    lines = [f"{name + ':':<11} {value}" for name, value in _facts(state, clock)]
    summary = _summary(run)
    if summary is not None:
        if summary.cells:
            lines += ["", render_table(summary.cells, max_width)]
        lines += list(_failures(summary, max_width))
    return "\n".join(lines)


def shown_json(run: FoundRun, clock: Clock = SYSTEM_CLOCK) -> str:
    """What a run says about itself and what came out, for scripts; `null` for a damaged file."""
    plain = state_of(run, clock).to_json()
    for name in (FACTS_FILE, SUMMARY_FILE):
        if name in run.files:
            plain[name.removesuffix(".json")] = _json(run, name)
    return json.dumps(plain, indent=2)


def _facts(state: RunState, clock: Clock) -> Iterator[tuple[str, str]]:
    """Names and values of the lines."""
    run, age = state.run, age_of(state, clock)
    yield "run", str(run.place)
    yield "state", state.state
    yield "recipe", state.recipe or DASH
    yield "command", state.command or DASH
    yield "model", state.model or DASH
    yield "benchmark", ", ".join(state.benchmarks) or DASH
    yield "cells", DASH if state.num_cells is None else str(state.num_cells)
    if state.started is not None and age is not None:
        yield "started", f"{state.started.astimezone():%Y-%m-%d %H:%M} ({human_age(age)} ago)"
    yield "size", f"{human_bytes(state.num_bytes)}"
    facts = (_json(run, FACTS_FILE) if FACTS_FILE in run.files else None) or {}
    for name, key in (("device", "device"), ("commit", "git_commit"), ("note", "note")):
        if facts.get(key):
            yield name, str(facts[key])
    if facts.get("wall_s"):
        yield "took", human_age(facts["wall_s"])
    if facts.get("caches"):
        yield "caches", f"{len(facts['caches'])}, the first {facts['caches'][0]}"
    if state.state == "stopped":
        yield "go on", f"tango {state.command or 'sweep'} {run.place}/job.yaml --resume {run.place}"


def _json(run: FoundRun, name: str) -> dict[str, Any] | None:
    """A JSON file of a run; `None` if it is damaged, which the run's state says."""
    try:
        found = json.loads(run.storage.read(name))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _summary(run: FoundRun) -> RunSummary | None:
    """The numbers of a run; `None` without any, and for a comparison of runs."""
    if SUMMARY_FILE not in run.files:
        return None
    try:
        data = json.loads(run.storage.read(SUMMARY_FILE))
        return None if data.get("kind") == "comparison" else RunSummary.from_json(data)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{run.place}/{SUMMARY_FILE} is damaged ({type(error).__name__}); "
            f"`tango report {run.place}` writes it again"
        ) from error


def _failures(summary: RunSummary, max_width: int | None) -> Iterator[str]:
    """Why answers failed."""
    reasons = summary.failures.reasons
    if reasons:
        yield f"\n{summary.counts.num_failed} answers failed:"
    for reason in reasons[:_FAILURES_SHOWN]:
        text = f"  {reason.questions} {reason.status}: {reason.error}"
        yield shortened(text, max_width or len(text))
    if len(reasons) > _FAILURES_SHOWN:
        yield f"  and {len(reasons) - _FAILURES_SHOWN} more reasons, see failures.parquet"
