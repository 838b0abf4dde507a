"""`tango cache verify` and `tango cache gc`: what they do, and what they say about it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from pipeline.cache_folders import MANIFEST, bad_entries, find_caches


def verify(root: str, names: Sequence[str], delete: bool, console: Console) -> int:
    """Read every clip of the caches and name what is bad.

    Args:
        root: Directory or URL of the caches.
        names: Names or patterns of those to read; none for all.
        delete: Whether what is bad is removed.
        console: Receives a line per bad file, and a sum.

    Returns:
        Exit code: 1 if anything was bad.
    """
    folders = find_caches(root, names)
    num_clips = sum(len(folder.entries) for folder in folders)
    num_bad = 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading clips", total=num_clips)
        for folder in folders:
            if folder.problem:
                num_bad += 1
                _say(console, f"{folder.name}: {folder.problem}")
                if delete:
                    folder.remove(MANIFEST)
            for name, problem in bad_entries(folder):
                progress.advance(task)
                if problem:
                    num_bad += 1
                    _say(console, f"{folder.name}/{name}: {problem}")
                    if delete:
                        folder.remove(name)
    what = f"{num_clips} clips in {len(folders)} token cache(s) read"
    if not num_bad:
        _say(console, f"{what}, all good")
        return 0
    end = "removed; the next job computes them again" if delete else "--delete removes them"
    _say(console, f"{what}, {num_bad} bad: {end}")
    return 1


def _say(console: Console, line: str) -> None:
    """One line, as it is."""
    console.print(" ".join(line.split()), markup=False, highlight=False, soft_wrap=True)
