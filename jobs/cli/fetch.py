"""The commands `tango data get` and `tango model get`: downloads from the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.completion import benchmark_names, model_names
from jobs.cli.options import expanded

model = typer.Typer(no_args_is_help=True, help="Download checkpoints.")

Jobs = Annotated[int, typer.Option(min=1, max=32, help="Number of parallel downloads.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would be downloaded.")]
Silent = Annotated[bool, typer.Option("--quiet", help="Show no progress bar and no notes.")]


def data_get(
    benchmark: Annotated[
        str,
        typer.Argument(
            help="Name of a benchmark.", show_default=False, autocompletion=benchmark_names
        ),
    ],
    root: Annotated[
        Path,
        typer.Option(
            help="Target directory, to be used as benchmark.root.",
            show_default=False,
            callback=expanded,
        ),
    ],
    only: Annotated[
        list[str],
        typer.Option(help="Only this part: annotations, videos or subtitles; may be repeated."),
    ] = [],  # noqa: B006
    repository: Annotated[
        str | None, typer.Option(help="Alternative repository.  [default: the usual one]")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit.  [default: main]")
    ] = None,
    jobs: Jobs = 4,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="Keep archives after unpacking them.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    quiet: Silent = False,
) -> None:
    """Download a benchmark from the hub, unpack and check it; continues if interrupted."""
    from jobs.fetch.data import data_get

    code = data_get(
        benchmark,
        root,
        Console(),
        only=only,
        repository=repository,
        revision=revision,
        jobs=jobs,
        keep=keep_archives,
        yes=yes,
        dry_run=dry_run,
        quiet=_quiet(quiet),
    )
    raise typer.Exit(code)


@model.command("get")
def model_get(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a model, or a hub id.", show_default=False, autocompletion=model_names
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Directory for its files.  [default: the hub's cache]"),
    ] = None,
    half: Annotated[
        Literal["encoder", "language"] | None,
        typer.Option(help="Only the files of this half of the model."),
    ] = None,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit.")] = "main",
    jobs: Jobs = 4,
    yes: Yes = False,
    dry_run: DryRun = False,
    quiet: Silent = False,
) -> None:
    """Download a checkpoint from the hub; continues if interrupted."""
    from jobs.fetch.model import model_get

    code = model_get(
        name,
        Console(),
        folder=folder,
        half=half,
        revision=revision,
        jobs=jobs,
        yes=yes,
        dry_run=dry_run,
        quiet=_quiet(quiet),
    )
    raise typer.Exit(code)


def _quiet(wanted: bool) -> bool:
    """Also raise the log level to warnings."""
    import logging

    if wanted:
        logging.getLogger().setLevel(logging.WARNING)
    return wanted
