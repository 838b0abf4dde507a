"""Runs side by side on a terminal: `tango runs compare`; `jobs.report` does the work."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import ExitStack

from jobs.report.compare import compared_runs
from jobs.report.notes import On
from jobs.report.tables.cells import render_table
from jobs.runs.found import find_run
from pipeline.storage.copies import local_copy


def compared(
    texts: Sequence[str],
    root: str,
    *,
    baselines: Sequence[str] = (),
    on: On = "common",
    max_width: int | None = None,
) -> str:
    """The cells of several runs in one table, with what must be known about it; nothing is written.

    Args:
        texts: Runs, as `find_run` takes them.
        root: Directory or URL of runs that are named without one.
        baselines: What cells are compared with besides `full`.
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
    lines = [render_table(found.cells, max_width)]
    for note in found.notes:
        lines += ["", *textwrap.wrap(note, max_width or 100)]
    return "\n".join(lines)
