"""The commands `tango data ...` and `tango model get`: download and check files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from jobs.cli.completion import benchmark_names, model_names
from jobs.cli.options import Details, Positive, command

data = typer.Typer(no_args_is_help=True, help="Download and check the files of a benchmark.")
model = typer.Typer(no_args_is_help=True, help="Download checkpoints.")

Benchmark = Annotated[str, Details(help="Name of a benchmark.", autocompletion=benchmark_names)]
Jobs = Annotated[int, Details(min=1, max=32, help="Number of parallel downloads.")]
Yes = Annotated[bool, Details(help="Do not ask for confirmation.")]
DryRun = Annotated[bool, Details(help="List what would be downloaded.")]
Quiet = Annotated[bool, Details(help="Show no progress bar and no notes.")]


@command(data, "check")
def data_check(
    benchmark: Benchmark,
    root: Path | None = None,
    *,
    split: str = "test",
    output: Path | None = None,
    jobs: Positive = 4,
) -> int:
    """Check every row and every file before a job needs them.

    Args:
        root: Directory of its files.
        split: Split of the benchmark.
        output: Write every finding to a .csv or .parquet file.
        jobs: Number of files checked in parallel.
    """
    from jobs.data_check.check import data_check

    return data_check(benchmark, root, output, jobs, Console(), split)


@command(data, "get")
def data_get(
    benchmark: Benchmark,
    *,
    root: Path,
    only: list[str] = [],
    repository: str | None = None,
    revision: str | None = None,
    jobs: Jobs = 4,
    keep_archives: bool = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> int:
    """Download a benchmark from the hub, unpack and check it.

    Args:
        root: Target directory, to be used as benchmark.root.
        only: Only this part: annotations, videos or subtitles; may be repeated.
        repository: Alternative repository.  [default: the usual one]
        revision: Branch, tag or commit.  [default: main]
        keep_archives: Keep archives after unpacking them.
    """
    from jobs.fetch.data import data_get

    return data_get(
        benchmark,
        root,
        Console(),
        only=only,
        repository=repository,
        revision=revision,
        keep=keep_archives,
        **_options(jobs, yes, dry_run, quiet),
    )


@command(model, "get")
def model_get(
    name: Annotated[str, Details(autocompletion=model_names)],
    *,
    dir_: Path | None = None,
    half: Literal["encoder", "language"] | None = None,
    revision: str = "main",
    jobs: Jobs = 4,
    yes: Yes = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> int:
    """Download a checkpoint from the hub; continues if interrupted.

    Args:
        name: Name of a model, or a hub id.
        dir_: Directory for its files.  [default: the hub's cache]
        half: Only the files of this half of the model.
        revision: Branch, tag or commit.
    """
    from jobs.fetch.model import model_get

    how = _options(jobs, yes, dry_run, quiet)
    return model_get(name, Console(), folder=dir_, half=half, revision=revision, **how)


def _options(jobs: int, yes: bool, dry_run: bool, quiet: bool) -> Any:
    if quiet:
        logging.getLogger().setLevel(logging.WARNING)
    return {"jobs": jobs, "yes": yes, "dry_run": dry_run, "quiet": quiet}
