"""The commands `tango cache ...`: list, check, shrink and export token caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Literal

import typer

from jobs import exit_codes
from jobs.cli.options import CACHE, Details, Location, command, expanded
from jobs.units import human_bytes, parse_age, parse_bytes
from pipeline.redaction import redacted
from tango_core.errors import InputError

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
    from jobs.cache_table import cache_table
    from pipeline.cache.folders import find_caches

    print(cache_table(find_caches(root)) or f"no token caches in {redacted(root)}")


@command(app)
def verify(names: Names = [], *, root: Root = CACHE, delete: bool = False) -> int:
    """Read and check every clip of the caches; exit code 1 if any is damaged.

    Args:
        delete: Remove damaged clips; the next job recomputes them.
    """
    from pipeline.cache.directory import MANIFEST
    from pipeline.cache.folders import check_entries, find_caches

    folders = find_caches(root, names)
    num_clips = sum(folder.num_clips for folder in folders)
    num_bad = 0

    def bad(name: str, reason: str, remove: Callable[[], object]) -> None:
        nonlocal num_bad
        num_bad += 1
        _print(f"{name}: {reason}")
        if delete:
            remove()

    with _progress("reading clips", sum(len(folder.locations) for folder in folders)) as advance:
        for folder in folders:
            if folder.problem:
                bad(folder.name, folder.problem, partial(folder.remove, MANIFEST))
            for name, reason in folder.index.unreadable.items():
                unreadable = f"cannot be read: {reason}"
                bad(f"{folder.name}/{name}", unreadable, partial(folder.remove, name))
            for location, problem in check_entries(folder):
                advance()
                if problem:
                    file = f"{folder.name}/{location.name}"
                    bad(file, problem, partial(folder.discard, location))
    what = f"{num_clips} clips in {len(folders)} token cache(s) read"
    end = "removed, the next job writes them again" if delete else "--delete removes them"
    _print(f"{what}, {num_bad} bad file(s): {end}" if num_bad else f"{what}, all good")
    return exit_codes.of(not num_bad)


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
    age = parse_age(older_than, "--older-than") if older_than is not None else None
    size = parse_bytes(max_size, "--max-size") if max_size is not None else None
    from pipeline.cache.folders import find_caches, plan_removals
    from pipeline.runtime.clock import SYSTEM_CLOCK

    folders = find_caches(root, name)
    whole = bool(name) and age is None and size is None
    removals = plan_removals(folders, SYSTEM_CLOCK.now(), age, size, whole)
    for folder in folders:
        if folder.problem:
            _print(f"skipped: {folder.name}: {folder.problem}")
    for removal in removals:
        files = f"{len(removal.files)} file(s), {human_bytes(removal.num_bytes)}"
        verb = "removing" if yes else "to remove"
        _print(f"{verb}: {removal.folder.name}: {files}: {removal.reason}")
        if yes:
            removal.apply()
    freed = human_bytes(sum(removal.num_bytes for removal in removals))
    total = "freed" if yes else "would be freed; nothing was removed, --yes does it"
    _print(f"{freed} {total}" if removals else "nothing to remove")


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
    from pipeline.cache.export import export_cache
    from pipeline.cache.folders import find_caches

    folder, *others = find_caches(root, [name])
    if others:
        found = ", ".join(one.name for one in (folder, *others))
        raise InputError(f"{name!r} stands for several token caches; name one of: {found}")
    num_skipped = 0
    with _progress("writing clips", len(folder.locations)) as advance:

        def report(file: str, problem: str | None) -> None:
            nonlocal num_skipped
            advance()
            if problem:
                num_skipped += 1
                _print(f"skipped: {folder.name}/{file}: {problem}")

        export_cache(folder, dest, format_, report)
    num_clips = folder.num_clips - num_skipped
    _print(f"{num_clips} clips written to {dest}, {num_skipped} skipped")
    return exit_codes.of(not num_skipped)


@command(app)
def materialize(names: Names = [], *, root: Root = CACHE) -> int:
    """Compute token sets from stored features and store them; exit code 1 if any fails."""
    from pipeline.cache.derived import materialise
    from pipeline.cache.directory import TokenCache
    from pipeline.cache.folders import find_caches
    from pipeline.cache.rows import CacheError

    num_bad = 0
    for folder in find_caches(root, names):
        if folder.holds_features:
            continue
        cache = folder.cache
        problems: dict[str, str | None] = {}
        try:
            if not isinstance(cache, TokenCache):
                raise CacheError(folder.problem)
            materialise(cache, problems.__setitem__)
        except CacheError as error:
            num_bad += 1
            _print(f"skipped: {folder.name}: {error}")
            continue
        for key, problem in problems.items():
            if problem:
                num_bad += 1
                _print(f"no token set: {folder.name}/{key}: {problem}")
        num_stored = sum(problem is None for problem in problems.values())
        _print(f"{folder.name}: {num_stored} token sets computed from features")
    return exit_codes.of(not num_bad)


@command(app)
def compact(names: Names = [], *, root: Root = CACHE) -> int:
    """Merge clips into files of about 256 MB, for object stores and fast listings."""
    from pipeline.cache.folders import compact_cache, find_caches

    num_bad = 0
    for folder in find_caches(root, names):
        if folder.problem:
            num_bad += 1
            _print(f"skipped: {folder.name}: {folder.problem}")
            continue
        num_moved = 0
        with _progress("moving clips", len(folder.singles)) as advance:
            for file, problem in compact_cache(folder):
                advance()
                num_moved += not problem
                if problem:
                    num_bad += 1
                    _print(f"not moved: {folder.name}/{file}: {problem}")
        _print(f"{folder.name}: {num_moved} clips moved into shards")
    return exit_codes.of(not num_bad)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar, on terminals only; yields the function that advances it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield partial(progress.advance, task)


def _print(line: str) -> None:
    print(" ".join(line.split()))
