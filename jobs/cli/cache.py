"""The commands `tango cache ...`: list, check, shrink and export token caches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, cast

import typer

from jobs import exit_codes
from jobs.cli.options import CACHE, Details, Location, command, expanded
from jobs.units import human_bytes, parse_age, parse_bytes
from pipeline.redaction import redacted
from tango_core.errors import InputError

if TYPE_CHECKING:
    from pipeline.cache.directory import TokenCache

T = TypeVar("T")

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
    """Check every cached clip; exit code 1 if any is damaged.

    Args:
        delete: Remove damaged clips; the next job recomputes them.
    """
    from pipeline.cache.directory import MANIFEST
    from pipeline.cache.folders import check_entries, find_caches

    folders = find_caches(root, names)
    num_clips = sum(folder.num_clips for folder in folders)
    num_bad = 0
    for folder in folders:
        bad = {name: f"cannot be read: {why}" for name, why in folder.index.unreadable.items()}
        if folder.problem:
            _print(f"{folder.name}: {folder.problem}")
        for name, reason in bad.items():
            _print(f"{folder.name}/{name}: {reason}")
        num_bad += len(bad) + bool(folder.problem)
        for name in [*bad, *([MANIFEST] if folder.problem else [])] if delete else []:
            folder.remove(name)
    entries = ((folder, *entry) for folder in folders for entry in check_entries(folder))
    num_entries = sum(len(folder.locations) for folder in folders)
    for folder, location, problem in _tracked(entries, "reading clips", num_entries):
        if problem:
            num_bad += 1
            _print(f"{folder.name}/{location.name}: {problem}")
            if delete:
                folder.discard(location)
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
    """Remove leftovers of killed writers, old caches, oldest clips.

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
    """Export a cache's tokens; exit code 1 if any clip is damaged.

    Args:
        name: Name or pattern of one cache.
        dest: New directory, or URL.
        format_: A file per clip, or tables with tokens as lists.
    """
    from pipeline.cache.export import export_cache
    from pipeline.cache.folders import find_caches

    found = find_caches(root, [name])
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise InputError(f"{name!r} stands for several token caches; name one of: {names}")
    (folder,) = found
    problems: dict[str, str | None] = {}
    export_cache(folder, dest, format_, problems.__setitem__)
    num_skipped = _print_problems(f"skipped: {folder.name}", problems)
    _print(f"{folder.num_clips - num_skipped} clips written to {dest}, {num_skipped} skipped")
    return exit_codes.of(not num_skipped)


@command(app)
def materialize(names: Names = [], *, root: Root = CACHE) -> int:
    """Store token sets of stored features; exit code 1 if any fails."""
    from pipeline.cache.derived import materialise
    from pipeline.cache.folders import find_caches

    num_bad = 0
    for folder in find_caches(root, names):
        if folder.holds_features:
            continue
        problems: dict[str, str | None] = {}
        try:
            materialise(cast("TokenCache", folder.opened), problems.__setitem__)
        except InputError as error:
            num_bad += 1
            _print(f"skipped: {folder.name}: {str(error).removeprefix(f'{folder.name}: ')}")
            continue
        failed = _print_problems(f"no token set: {folder.name}", problems)
        num_bad += failed
        _print(f"{folder.name}: {len(problems) - failed} token sets computed from features")
    return exit_codes.of(not num_bad)


@command(app)
def compact(names: Names = [], *, root: Root = CACHE) -> int:
    """Merge clips into files of about 256 MB, which are listed fast."""
    from pipeline.cache.folders import compact_cache, find_caches

    num_bad = 0
    for folder in find_caches(root, names):
        if folder.problem:
            num_bad += 1
            _print(f"skipped: {folder.name}: {folder.problem}")
            continue
        moves = _tracked(compact_cache(folder), "moving clips", len(folder.singles))
        problems = dict(moves)
        bad = _print_problems(f"not moved: {folder.name}", problems)
        num_bad += bad
        _print(f"{folder.name}: {len(problems) - bad} clips moved into shards")
    return exit_codes.of(not num_bad)


def _print_problems(what: str, problems: Mapping[str, str | None]) -> int:
    """Print the files or clips that have a problem; returns their number."""
    bad = {name: problem for name, problem in problems.items() if problem}
    for name, problem in bad.items():
        _print(f"{what}/{name}: {problem}")
    return len(bad)


def _tracked(items: Iterable[T], what: str, total: int) -> Iterable[T]:
    """The items, with a progress bar on terminals."""
    from rich.console import Console
    from rich.progress import track

    console = Console()
    hidden = not console.is_terminal
    return track(items, what, total, console=console, transient=True, disable=hidden)


def _print(line: str) -> None:
    print(" ".join(line.split()))
