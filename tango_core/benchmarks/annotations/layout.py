"""Find the files of a release in the folder layouts of its authors and of the harnesses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def resolve_root(root: str | None, title: str, layout: str) -> Path:
    """Turn `benchmark.root` into the folder that holds the release.

    A repository folder of the Hugging Face cache (`datasets--owner--name`) stands for its snapshot.

    Args:
        root: The recipe's `benchmark.root`.
        title: Name of the benchmark, for messages.
        layout: What the folder should hold, for messages.

    Raises:
        ValueError: If `root` is not set.
        FileNotFoundError: If it does not exist.
    """
    if not root:
        raise ValueError(f"benchmark.root is missing; set it to the folder of {title}: {layout}")
    path = Path(os.path.expanduser(root)).absolute()
    if not path.is_dir():
        raise FileNotFoundError(
            f"benchmark.root {root!r} is not a folder; {title} expects there: {layout}"
        )
    if (path / "snapshots").is_dir():
        snapshots = [entry for entry in (path / "snapshots").iterdir() if entry.is_dir()]
        if snapshots:
            return max(snapshots, key=lambda entry: entry.stat().st_mtime)
    return path


def find_file(root: Path, patterns: Sequence[str]) -> Path | None:
    """Return the first file that one of the patterns names; of several the last by name.

    Args:
        root: Where the patterns start; they may begin with `../`.
        patterns: File names or glob patterns, the preferred ones first.
    """
    for pattern in patterns:
        base = root
        while pattern.startswith("../"):
            base, pattern = base.parent, pattern[3:]
        found = sorted(path for path in base.glob(pattern) if path.is_file())
        if found:
            return found[-1]
    return None


class MediaFinder:
    """Looks up files by name; every folder is listed once, as network disks are slow to list.

    Args:
        root: Folder that relative folders start from.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._listings: dict[str, frozenset[str]] = {}

    def find(self, folders: Sequence[str], names: Sequence[str]) -> str | None:
        """Return the first of `folders` x `names` that exists, as an absolute path.

        Args:
            folders: Relative to the root, the preferred ones first.
            names: Names in these folders, which may have sub-folders of their own.
        """
        for folder in folders:
            for name in names:
                path = self.at(folder, name)
                parent, _, leaf = path.rpartition(os.sep)
                if leaf in self._names(parent):
                    return path
        return None

    def at(self, folder: str, name: str) -> str:
        """Return the absolute path of a name in a folder, whether it exists or not."""
        return os.path.normpath(os.path.join(self.root, folder, name))

    def holds(self, folder: str) -> bool:
        """Whether there is such a folder with anything in it."""
        return bool(self._names(os.path.normpath(os.path.join(self.root, folder))))

    def _names(self, folder: str) -> frozenset[str]:
        """Return what a folder holds; nothing if it cannot be listed."""
        if folder not in self._listings:
            try:
                self._listings[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._listings[folder] = frozenset()
        return self._listings[folder]
