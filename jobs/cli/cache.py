"""The commands `tango cache ...`: list, check, shrink and export token caches."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.options import expanded_text
from pipeline.redaction import redacted

cache = typer.Typer(no_args_is_help=True, help="Look after the token caches.")

Root = Annotated[
    str,
    typer.Option("--cache", help="Directory or URL of the token caches.", callback=expanded_text),
]

Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME", help="Caches, by name or pattern; none stands for all."),
]

CACHE = "runs/cache"


@cache.command("ls")
def list_(root: Root = CACHE) -> None:
    """List the caches: what is in them, how large and how old they are."""
    from jobs.cache.table import cache_table
    from pipeline.cache.folders import find_caches

    print(cache_table(find_caches(root)) or f"no token caches in {redacted(root)}")


@cache.command()
def verify(
    names: Names = [],  # noqa: B006
    root: Root = CACHE,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove what is bad; the next job makes it again.")
    ] = False,
) -> None:
    """Read every clip of every cache; exit code 1 if anything is bad."""
    from jobs.cache.maintenance import verify

    raise typer.Exit(verify(root, names, delete, Console()))


@cache.command()
def gc(
    root: Root = CACHE,
    name: Annotated[
        list[str],
        typer.Option(help="Only caches of this name or pattern, whole if nothing else is said."),
    ] = [],  # noqa: B006
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Caches that got nothing new for 30d, 2w, 36h."),
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The oldest clips, until 50GB are left.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only say it.")] = False,
) -> None:
    """Make room: leftovers of killed writers, old caches, the oldest clips."""
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
    """Write a cache's tokens for other projects; exit code 1 if any clip is bad."""
    from jobs.cache.maintenance import export

    raise typer.Exit(export(root, name, dest, form, Console()))


@cache.command()
def materialize(
    names: Names = [],  # noqa: B006
    root: Root = CACHE,
) -> None:
    """Store the token sets that stored features give; exit code 1 if any cannot be computed."""
    from jobs.cache.maintenance import materialize

    raise typer.Exit(materialize(root, names, Console()))


@cache.command()
def compact(
    names: Names = [],  # noqa: B006
    root: Root = CACHE,
) -> None:
    """Put clips into files of about 256 MB, for object stores and quick listings."""
    from jobs.cache.maintenance import compact

    raise typer.Exit(compact(root, names, Console()))
