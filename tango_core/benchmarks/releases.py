"""Files of public releases: where they are published, and how they are found in a folder.

A release is a repository of data on the Hugging Face hub. Nothing here opens a network connection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
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
        files: Patterns of paths in the repository, as in a shell; `*` also stands for `/`. Branches
            differ, so only one pattern must match a file.
        into: Folder below the root that archives are unpacked into; `None` for the folder that an
            archive has in the repository.
    """

    name: str
    files: tuple[str, ...]
    into: str | None = None

    @property
    def needed(self) -> bool:
        """Whether the benchmark cannot be run without it; other parts are fetched on demand."""
        return self.name != "subtitles"

    def holds(self, path: str) -> bool:
        """Whether a file of the repository belongs to this part."""
        return any(re.match(translate(pattern), path) for pattern in self.files)

    def folder_of(self, archive: str) -> str:
        """Folder below the root that an archive is unpacked into; "" for the root itself."""
        parent = PurePosixPath(archive).parent.as_posix()
        return self.into if self.into is not None else parent.removeprefix(".")


@dataclass(frozen=True, kw_only=True)
class Release:
    """A repository that holds a benchmark in a layout that its class reads.

    Attributes:
        repository: Id of the data set on the hub.
        licence: What its authors allow, in a few words.
        annotations: Patterns of the annotation files, as in `ReleasePart`.
        videos: Patterns of the videos or their archives; by default both may be anywhere. Empty if
            they are not in it.
        subtitles: Patterns of the subtitles.
        into: As in `ReleasePart`; by default the root, as lmms-eval unpacks archives.
        gated: Who may have it, in a few words; "" for everyone. The hub is asked in any case.
        revision: Branch, tag or commit.
        notes: What is not in it, or where else it is: one sentence each.
    """

    repository: str
    licence: str
    annotations: tuple[str, ...] = ("*.parquet",)
    videos: tuple[str, ...] = ("*.zip", "*.tar*", "*.mp4")
    subtitles: tuple[str, ...] = ()
    into: str | None = ""
    gated: str = ""
    revision: str = "main"
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[ReleasePart, ...]:
        """Its parts, those without files left out."""
        named = (("annotations", self.annotations), ("videos", self.videos))
        every = (*named, ("subtitles", self.subtitles))
        return tuple(ReleasePart(name, files, self.into) for name, files in every if files)


def archive_of(path: str) -> str | None:
    """The archive that a file is, or is a piece of; `None` for any other file.

    `videos.tar.part.aa` and `clips.zip.001` are pieces of `videos.tar` and `clips.zip`: cut where
    the bytes of one piece end, and joined in the order of their names.
    """
    if path.endswith(ARCHIVES):
        return path
    found = _PIECE.fullmatch(path)
    return found["whole"] if found else None


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
