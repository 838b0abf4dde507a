"""Where a benchmark's files are published, as its class states it.

A release is a repository of data on the Hugging Face hub: which of its files belong to which part,
and what somebody should know before a download starts. Nothing here asks a network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from pathlib import PurePosixPath

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
