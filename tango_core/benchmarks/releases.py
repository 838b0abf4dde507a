"""Files of public releases: where they are published, and how they are found in a folder.

A release is a repository of data on the Hugging Face hub. Nothing here opens a network connection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path, PurePosixPath

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
_PIECE = re.compile(
    r"(?P<whole>.+(?:\.zip|\.tar|\.tar\.gz|\.tgz))(?:\.part)?[._-](?P<at>[a-z]{2}|\d{1,5})"
)


@dataclass(frozen=True)
class ReleasePart:
    """Files that serve one purpose.

    Attributes:
        name: As in `--only`: `annotations`, `videos` or `subtitles`.
        files: Patterns of paths in the repository, as in a shell; `*` also stands for `/`. Every
            one of them must match a file, unless the patterns are marked `any_of`.
        any_of: Whether one pattern with a file is enough: branches differ.
        needed: Whether the benchmark cannot be run without it; other parts are fetched on demand.
        into: Folder below the root that archives are unpacked into; `None` for the folder that an
            archive has in the repository.
    """

    name: str
    files: tuple[str, ...]
    any_of: bool = False
    needed: bool = True
    into: str | None = None

    def holds(self, path: str) -> bool:
        """Whether a file of the repository belongs to this part."""
        return any(re.match(translate(pattern), path) for pattern in self.files)

    def unmatched(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Patterns that should match a file and match none."""
        known = list(paths)
        missing = tuple(
            pattern
            for pattern in self.files
            if not any(re.match(translate(pattern), path) for path in known)
        )
        return missing if len(missing) == len(self.files) or not self.any_of else ()

    def folder_of(self, archive: str) -> str:
        """Folder below the root that an archive is unpacked into; "" for the root itself."""
        parent = PurePosixPath(archive).parent.as_posix()
        return self.into if self.into is not None else parent.removeprefix(".")


@dataclass(frozen=True)
class Release:
    """A repository that holds a benchmark in a layout that its class reads.

    Attributes:
        repository: Id of the data set on the hub.
        parts: What is in it.
        licence: What its authors allow, in a few words.
        gated: Who may have it, in a few words; "" for everyone. The hub is asked in any case.
        revision: Branch, tag or commit.
        notes: What is not in it, or where else it is: one sentence each.
    """

    repository: str
    parts: tuple[ReleasePart, ...]
    licence: str
    gated: str = ""
    revision: str = "main"
    notes: tuple[str, ...] = ()

    def part(self, name: str) -> ReleasePart | None:
        """The part of that name."""
        return next((part for part in self.parts if part.name == name), None)


def archive_of(path: str) -> str | None:
    """The archive that a file is, or is a piece of; `None` for any other file.

    `videos.tar.part.aa` and `clips.zip.001` are pieces of `videos.tar` and `clips.zip`: cut where
    the bytes of one piece end, and joined in the order of their names.
    """
    if path.endswith(ARCHIVES):
        return path
    found = _PIECE.fullmatch(path)
    return found["whole"] if found else None


def in_hub_cache(repository: str, *names: str) -> tuple[str, ...]:
    """Patterns of files in the Hugging Face cache below the root and beside it."""
    folder = f"hub/datasets--{repository.replace('/', '--')}/snapshots/*"
    return tuple(f"{up}{folder}/{name}" for up in ("", "../") for name in names)


def find_file(root: Path, patterns: Sequence[str]) -> Path | None:
    """Return the first file that one of the patterns names; of several the last by name.

    Args:
        root: Where the patterns start; they may begin with `../`.
        patterns: File names or glob patterns, the preferred ones first.
    """
    for pattern in patterns:
        base = root.parent if pattern.startswith("../") else root
        found = sorted(path for path in base.glob(pattern.removeprefix("../")) if path.is_file())
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
        for path in (self.at(folder, name) for folder in folders for name in names):
            parent, leaf = os.path.split(path)
            if leaf in self._names(parent):
                return path
        return None

    def at(self, folder: str, name: str) -> str:
        """Return the absolute path of a name in a folder, whether it exists or not."""
        return os.path.normpath(os.path.join(self.root, folder, name))

    def holds(self, folder: str) -> bool:
        """Whether the folder exists and is not empty."""
        return bool(self._names(self.at(folder, "")))

    def _names(self, folder: str) -> frozenset[str]:
        """Names in a folder; empty if it cannot be listed."""
        if folder not in self._listings:
            try:
                self._listings[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._listings[folder] = frozenset()
        return self._listings[folder]
