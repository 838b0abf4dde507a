"""The commands `tango cache ...`: list, check, shrink and export token caches."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.options import expanded_text
from pipeline.redaction import redacted

cache = typer.Typer(no_args_is_help=True, help="Manage the token caches.")

Root = Annotated[
    str,
    typer.Option("--cache", help="Directory or URL of the token caches.", callback=expanded_text),
]

Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME", help="Names or patterns of caches.  [default: all]"),
]

CACHE = "runs/cache"


@cache.command("ls")
def list_(root: Root = CACHE) -> None:
    """List the caches with content, size and age."""
    from jobs.cache.table import cache_table
    from pipeline.cache.folders import find_caches

    print(cache_table(find_caches(root)) or f"no token caches in {redacted(root)}")


@cache.command()
def verify(
    names: Names = [],  # noqa: B006
    root: Root = CACHE,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove damaged clips; the next job recomputes them.")
    ] = False,
) -> None:
    """Read and check every clip of the caches; exit code 1 if any is damaged."""
    from jobs.cache.maintenance import verify

    raise typer.Exit(verify(root, names, delete, Console()))


@cache.command()
def gc(
    root: Root = CACHE,
    name: Annotated[
        list[str],
        typer.Option(
            help="Only caches with this name or pattern; without a limit they are removed entirely."
        ),
    ] = [],  # noqa: B006
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Remove caches without new clips for 30d, 2w, 36h."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Remove the oldest clips until 50GB are left."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove; without it, only list what would be removed.")
    ] = False,
) -> None:
    """Free space: remove leftovers of killed writers, old caches and the oldest clips."""
    from jobs.cache.maintenance import gc
    from jobs.units import parse_age, parse_bytes

    age = parse_age(older_than, "--older-than") if older_than is not None else None
    size = parse_bytes(max_size, "--max-size") if max_size is not None else None
    gc(root, name, age, size, yes, Console())


@cache.command()
def export(
    name: Annotated[str, typer.Argument(help="Name or pattern of one cache.", show_default=False)],
    dest: Annotated[
        str,
        typer.Argument(help="New directory, or URL.", show_default=False, callback=expanded_text),
    ],
    root: Root = CACHE,
    form: Annotated[
        Literal["safetensors", "parquet"],
        typer.Option("--format", help="A file per clip, or tables with tokens as lists."),
    ] = "safetensors",
) -> None:
    """Export a cache's tokens for other projects; exit code 1 if any clip is damaged."""
    from jobs.cache.maintenance import export

    raise typer.Exit(export(root, name, dest, form, Console()))


@cache.command()
def materialize(
    names: Names = [],  # noqa: B006
    root: Root = CACHE,
) -> None:
    """Compute token sets from stored features and store them; exit code 1 if any fails."""
    from jobs.cache.maintenance import materialize

    raise typer.Exit(materialize(root, names, Console()))


@cache.command()
def compact(
    names: Names = [],  # noqa: B006
    root: Root = CACHE,
) -> None:
    """Merge clips into files of about 256 MB, for object stores and fast listings."""
    from jobs.cache.maintenance import compact

    raise typer.Exit(compact(root, names, Console()))
