"""The commands `tango runs ...`: list, show, compare and remove runs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.completion import run_names
from jobs.cli.options import RUNS, expanded_text
from pipeline.storage.urls import raise_if_secret

runs = typer.Typer(no_args_is_help=True, help="List, show, compare and remove runs.")

_NAMED = "Run directory, its URL, or the beginning of its name in ROOT."


def _expanded(texts: list[str]) -> list[str]:
    """See `options.expanded_text`."""
    return [str(expanded_text(text)) for text in texts]


Root = Annotated[
    str,
    typer.Option(help="Directory or URL in which names of runs are found.", callback=expanded_text),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help=_NAMED,
        show_default=False,
        callback=expanded_text,
        autocompletion=run_names,
    ),
]
Several = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help=_NAMED,
        show_default=False,
        callback=_expanded,
        autocompletion=run_names,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@runs.command("ls")
def list_(
    roots: Annotated[
        list[str],
        typer.Argument(metavar="ROOT...", help="Directories or URLs of runs.", callback=_expanded),
    ] = [RUNS],  # noqa: B006
    json: Json = False,
) -> None:
    """List the runs with their content, progress, score, size and age."""
    for root in roots:
        raise_if_secret(root)
    from jobs.runs.show import runs_in, runs_json, runs_table

    found = runs_in(roots)
    if json:
        print(runs_json(found))
    else:
        print(runs_table(found, _width()) if found else f"no runs in {', '.join(roots)}")


@runs.command()
def show(run: Run, root: Root = RUNS, json: Json = False) -> None:
    """Show one run: settings, results, reasons of failures, and how to continue it."""
    from jobs.runs.found import find_run
    from jobs.runs.show import shown, shown_json

    found = find_run(run, root)
    print(shown_json(found) if json else shown(found, _width()))


@runs.command()
def rm(
    names: Several,
    root: Root = RUNS,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete runs, except those that a driver works on; caches and MLflow runs are kept."""
    from jobs.runs.removal import remove

    raise typer.Exit(remove(names, root, Console(), yes=yes))


@runs.command()
def compare(
    names: Several,
    root: Root = RUNS,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="Also compare every cell with this method.", show_default=False),
    ] = None,
    on: Annotated[
        Literal["common", "all"],
        typer.Option(help="Questions that count where several runs were asked different ones."),
    ] = "common",
) -> None:
    """Print the cells of several runs in one table; `tango report` writes pages and files."""
    from jobs.runs.show import compared

    print(compared(names, root, baselines=baseline or (), on=on, max_width=_width()))


@runs.command()
def replicates(
    names: Several,
    output: Annotated[
        str,
        typer.Option(
            help="Directory or URL to write to.", show_default=False, callback=expanded_text
        ),
    ],
    root: Root = RUNS,
) -> None:
    """Summarize runs of one recipe with several trainings of a model: means and spread."""
    raise_if_secret(output)
    from jobs.runs.show import replicated

    print(replicated(names, root, output, max_width=_width()))


def _width() -> int | None:
    """Maximum width of a table in characters."""
    from jobs.run.progress import Display

    return Display.on(Console()).table_width
