"""The commands `tango cache ...`: list, check, shrink and export token caches."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.options import CACHE, Details, Location, command, expanded
from pipeline.redaction import redacted

app = typer.Typer(no_args_is_help=True, help="Manage the token caches.")

Root = Annotated[
    str,
    Details(names=["--cache"], help="Directory or URL of the token caches.", callback=expanded),
]
Names = Annotated[
    list[str], Details(metavar="NAME", help="Names or patterns of caches.  [default: all]")
]


@command(app)
def ls(*, root: Root = CACHE) -> None:
    """List the caches with content, size and age."""
    from jobs.cache.table import cache_table
    from pipeline.cache.folders import find_caches

    print(cache_table(find_caches(root)) or f"no token caches in {redacted(root)}")


@command(app)
def verify(names: Names = [], *, root: Root = CACHE, delete: bool = False) -> int:
    """Read and check every clip of the caches; exit code 1 if any is damaged.

    Args:
        delete: Remove damaged clips; the next job recomputes them.
    """
    from jobs.cache.maintenance import verify

    return verify(root, names, delete, Console())


@command(app)
def gc(
    *,
    root: Root = CACHE,
    name: list[str] = [],
    older_than: Annotated[str | None, Details(metavar="AGE")] = None,
    max_size: Annotated[str | None, Details(metavar="SIZE")] = None,
    yes: bool = False,
) -> None:
    """Free space: remove leftovers of killed writers, old caches and the oldest clips.

    Args:
        name: Only caches with this name or pattern; without a limit they are removed entirely.
        older_than: Remove caches without new clips for 30d, 2w, 36h.
        max_size: Remove the oldest clips until 50GB are left.
        yes: Remove; without it, only list what would be removed.
    """
    from jobs.cache.maintenance import gc
    from jobs.units import parse_age, parse_bytes

    age = parse_age(older_than, "--older-than") if older_than is not None else None
    size = parse_bytes(max_size, "--max-size") if max_size is not None else None
    gc(root, name, age, size, yes, Console())


@command(app)
def export(
    name: str,
    dest: Location,
    *,
    root: Root = CACHE,
    format_: Literal["safetensors", "parquet"] = "safetensors",
) -> int:
    """Export a cache's tokens for other projects; exit code 1 if any clip is damaged.

    Args:
        name: Name or pattern of one cache.
        dest: New directory, or URL.
        format_: A file per clip, or tables with tokens as lists.
    """
    from jobs.cache.maintenance import export

    return export(root, name, dest, format_, Console())


@command(app)
def materialize(names: Names = [], *, root: Root = CACHE) -> int:
    """Compute token sets from stored features and store them; exit code 1 if any fails."""
    from jobs.cache.maintenance import materialize

    return materialize(root, names, Console())


@command(app)
def compact(names: Names = [], *, root: Root = CACHE) -> int:
    """Merge clips into files of about 256 MB, for object stores and fast listings."""
    from jobs.cache.maintenance import compact

    return compact(root, names, Console())
