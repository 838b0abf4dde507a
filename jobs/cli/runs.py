"""The commands `tango runs ...`: list, show, compare and remove runs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.completion import run_names
from jobs.cli.options import RUNS, Baselines, Details, Json, On, command, expanded, width

app = typer.Typer(no_args_is_help=True, help="List, show, compare and remove runs.")

_NAMED = "Run directory, its URL, or the beginning of its name in ROOT."
_IN_ROOT = {"help": _NAMED, "callback": expanded, "autocompletion": run_names}

Root = Annotated[
    str, Details(help="Directory or URL in which names of runs are found.", callback=expanded)
]
Run = Annotated[str, Details(metavar="RUN", **_IN_ROOT)]
Several = Annotated[list[str], Details(metavar="RUN...", **_IN_ROOT)]


@command(app)
def ls(
    roots: Annotated[list[str], Details(metavar="ROOT...", callback=expanded)] = [RUNS],
    *,
    json: Json = False,
) -> None:
    """List the runs with their content, progress, score, size and age.

    Args:
        roots: Directories or URLs of runs.
    """
    from json import dumps

    from jobs.runs.show import runs_in, runs_table

    found = runs_in(roots)
    if json:
        print(dumps(found, indent=2))
    else:
        print(runs_table(found, width()) if found else f"no runs in {', '.join(roots)}")


@command(app)
def show(run: Run, *, root: Root = RUNS, json: Json = False) -> None:
    """Show one run, and how to continue it."""
    from jobs.runs.found import find_run
    from jobs.runs.show import shown, shown_json

    found = find_run(run, root)
    print(shown_json(found) if json else shown(found, width()))


@command(app)
def rm(names: Several, *, root: Root = RUNS, yes: bool = False) -> int:
    """Delete runs that no driver works on, without their caches.

    Args:
        yes: Do not ask.
    """
    from jobs.runs.found import remove

    return remove(names, root, Console(), yes=yes)


@command(app)
def compare(
    names: Several,
    *,
    root: Root = RUNS,
    baseline: Baselines = [],
    on: On = "common",
    format_: Literal["terminal", "markdown", "latex", "csv"] = "terminal",
) -> None:
    """Print the cells of several runs in one table.

    Args:
        format_: A table for the terminal, to paste into a text, or (csv) with unrounded numbers.
    """
    from jobs.runs.show import compared

    print(compared(names, root, format_, baselines=baseline, on=on, max_width=width()))
