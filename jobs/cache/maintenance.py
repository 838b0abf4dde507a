"""`tango cache verify`, `gc`, `export`, `materialize`, `compact`: run and print the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from rich.console import Console
from rich.progress import Progress

from jobs import exit_codes
from jobs.units import human_bytes
from pipeline.cache.compact import compact_cache
from pipeline.cache.derived import materialise
from pipeline.cache.directory import MANIFEST, TokenCache
from pipeline.cache.export import export_cache
from pipeline.cache.folders import check_entries, find_caches
from pipeline.cache.removal import plan_removals
from pipeline.cache.rows import CacheError
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from tango_core.errors import InputError


def verify(root: str, names: Sequence[str], delete: bool, console: Console) -> int:
    """Read every clip of the caches and list the bad files.

    Args:
        root: Directory or URL of the caches.
        names: Names or patterns of the caches to read; none for all.
        delete: Whether bad files are deleted.
        console: Where a line per bad file and a total are printed.

    Returns:
        Exit code: 1 if anything was bad.
    """
    folders = find_caches(root, names, by_footers=True)
    num_clips = sum(folder.num_clips for folder in folders)
    num_bad = 0

    def bad(name: str, reason: str, remove: Callable[[], object]) -> None:
        nonlocal num_bad
        num_bad += 1
        _print(console, f"{name}: {reason}")
        if delete:
            remove()

    with _progress(console) as progress:
        task = progress.add_task("reading clips", total=sum(len(f.locations) for f in folders))
        for folder in folders:
            if folder.problem:
                bad(folder.name, folder.problem, partial(folder.remove, MANIFEST))
            for name, reason in folder.index.unreadable.items():
                unreadable = f"cannot be read: {reason}"
                bad(f"{folder.name}/{name}", unreadable, partial(folder.remove, name))
            for location, problem in check_entries(folder):
                progress.advance(task)
                if problem:
                    file = f"{folder.name}/{location.name}"
                    bad(file, problem, partial(folder.discard, location))
    what = f"{num_clips} clips in {len(folders)} token cache(s) read"
    if not num_bad:
        _print(console, f"{what}, all good")
        return exit_codes.OK
    end = "removed, the next job writes them again" if delete else "--delete removes them"
    _print(console, f"{what}, {num_bad} bad file(s): {end}")
    return exit_codes.FAILED


def gc(
    root: str,
    names: Sequence[str],
    older_than: timedelta | None,
    max_bytes: int | None,
    yes: bool,
    console: Console,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """List the files that can be deleted, and delete them with `yes`.

    Args:
        root: Directory or URL of the caches.
        names: Names or patterns of the caches to clean; none for all.
        older_than: See `plan_removals`.
        max_bytes: See `plan_removals`.
        yes: Whether the files are deleted.
        console: Where a line per cache and reason and a total are printed.
        clock: Current time, for the age of files.
    """
    folders = find_caches(root, names)
    whole = bool(names) and older_than is None and max_bytes is None
    removals = plan_removals(folders, clock.now(), older_than, max_bytes, whole)
    for folder in folders:
        if folder.problem:
            _print(console, f"skipped: {folder.name}: {folder.problem}")
    for removal in removals:
        size = f"{len(removal.files)} file(s), {human_bytes(removal.num_bytes)}"
        verb = "removing" if yes else "to remove"
        _print(console, f"{verb}: {removal.folder.name}: {size}: {removal.reason}")
        if yes:
            removal.apply()
    freed = human_bytes(sum(removal.num_bytes for removal in removals))
    total = (
        f"{freed} freed" if yes else f"{freed} would be freed; nothing was removed, --yes does it"
    )
    _print(console, total if removals else "nothing to remove")


def export(root: str, name: str, destination: str, form: str, console: Console) -> int:
    """Write the clips of one cache for other projects.

    Args:
        root: Directory or URL of the caches.
        name: Name or pattern of the cache.
        destination: See `export_cache`.
        form: See `export_cache`.
        console: Where a line per skipped clip and a total are printed.

    Returns:
        Exit code: 1 if any clip was skipped.

    Raises:
        ValueError: If the name matches several caches, or as `export_cache`.
    """
    folder, *others = find_caches(root, [name])
    if others:
        names = ", ".join(found.name for found in (folder, *others))
        raise InputError(f"{name!r} stands for several token caches; name one of: {names}")
    skipped: list[str] = []
    with _progress(console) as progress:
        task = progress.add_task("writing clips", total=len(folder.locations))

        def report(file: str, problem: str | None) -> None:
            progress.advance(task)
            if problem:
                skipped.append(file)
                _print(console, f"skipped: {folder.name}/{file}: {problem}")

        export_cache(folder, destination, form, report)
    num_clips = folder.num_clips - len(skipped)
    _print(console, f"{num_clips} clips written to {destination}, {len(skipped)} skipped")
    return exit_codes.of(not skipped)


def materialize(root: str, names: Sequence[str], console: Console) -> int:
    """Compute token sets from stored features and store them, so the features can be deleted.

    Args:
        root: Directory or URL of the caches.
        names: Names or patterns of the caches; none for all.
        console: Where a line per cache and per clip without a token set is printed.

    Returns:
        Exit code: 1 if any token set could not be computed.
    """
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
            _print(console, f"skipped: {folder.name}: {error}")
            continue
        for key, problem in problems.items():
            if problem:
                num_bad += 1
                _print(console, f"no token set: {folder.name}/{key}: {problem}")
        num_stored = sum(problem is None for problem in problems.values())
        _print(console, f"{folder.name}: {num_stored} token sets computed from features")
    return exit_codes.of(not num_bad)


def compact(root: str, names: Sequence[str], console: Console) -> int:
    """Move the clips of the caches from single files into shards.

    Args:
        root: Directory or URL of the caches.
        names: Names or patterns of the caches to compact; none for all.
        console: Where a line per cache and per clip that is not moved is printed.

    Returns:
        Exit code: 1 if any clip is bad.
    """
    num_bad = 0
    with _progress(console) as progress:
        for folder in find_caches(root, names):
            if folder.problem:
                num_bad += 1
                _print(console, f"skipped: {folder.name}: {folder.problem}")
                continue
            task = progress.add_task("moving clips", total=len(folder.singles))
            num_moved = 0
            for file, problem in compact_cache(folder):
                progress.advance(task)
                if problem:
                    num_bad += 1
                    _print(console, f"not moved: {folder.name}/{file}: {problem}")
                else:
                    num_moved += 1
            _print(console, f"{folder.name}: {num_moved} clips moved into shards")
    return exit_codes.of(not num_bad)


def _progress(console: Console) -> Progress:
    """A progress bar, on terminals only."""
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _print(console: Console, line: str) -> None:
    """Print one line without markup or wrapping."""
    console.print(" ".join(line.split()), markup=False, highlight=False, soft_wrap=True)
