"""Several runs in one table, several trainings: `tango runs compare`, `tango runs replicates`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import ExitStack

from jobs.report.compare import compared_runs
from jobs.report.notes import On
from jobs.report.replicates import report_replicates
from jobs.report.tables.cells import render_table
from jobs.runs.found import find_run
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import place


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


def replicated(
    texts: Sequence[str], root: str, output: str, *, max_width: int | None = None
) -> str:
    """Write the files about the runs, and return what a terminal shows of them.

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
        report = report_replicates(folders, into)
    lines = []
    for text in report.sentences:
        lines += textwrap.wrap(text, max_width or 100, subsequent_indent="  ")
    return "\n".join([*lines, "", f"table: {target / report.page.name}"])
