"""The command `tango view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jobs.cli.options import RUNS, expanded, expanded_text
from jobs.cli.path_checks import check_cache_root, check_runs
from jobs.run.last_words import leaves_behind
from pipeline.storage.urls import place
from tango_core.errors import InputError


def view(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run directories, or their URLs.  [default: the newest one below runs]",
            show_default=False,
            callback=lambda runs: [expanded_text(run) for run in runs or []],
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the viewer into this directory, for a disk or any web server, and end.",
            show_default=False,
            callback=expanded,
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            help="Directory or URL of the token caches.  [default: where the run says, or beside "
            "it]",
            show_default=False,
            callback=expanded_text,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0 for a free one.")
    ] = 0,
    pixels: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2_000_000,
            help="Area of a frame in pixels; 0 for an export without frames.  [default: 200000, "
            "of an export 60000]",
            show_default=False,
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Look at runs in a browser: every question, and what each method keeps of its clip."""
    if cache is not None:
        check_cache_root(cache)
    if (pixels is not None and 0 < pixels < 1_000) or (pixels == 0 and export is None):
        raise InputError(f"--pixels {pixels}: give 1000 or more, or 0 with --export")
    from jobs.viewer import command

    places = [place(run) for run in runs or []] or [command.newest_run(Path(str(RUNS)))]
    check_runs(places)
    console = Console(soft_wrap=True)
    if export is not None:
        leaves_behind(f"the export in {export} is not whole; run the same command again")
        area = command.EXPORT_PIXELS if pixels is None else pixels
        page = command.export(places, export, console, cache=cache, pixels=area)
        console.print(f"viewer: {page}", markup=False, highlight=False)
        return
    leaves_behind("the viewer has ended, the runs are as they were")
    area = command.PIXELS if pixels is None else pixels
    command.view(places, console, cache=cache, port=port, pixels=area, opens=open_)
