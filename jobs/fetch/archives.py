"""Which files are archives or pieces of one, and where a member of an archive may go."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from jobs.fetch.hub import FetchError, RemoteFile
from tango_core.benchmarks.releases import archive_of

STATE = ".tango-get"

# Text packs to a twentieth, videos and images not at all; a bomb packs to a thousandth.
_LARGEST_RATIO = 100
_ALWAYS_ALLOWED = 64 * 2**20
_LITTER = ("__MACOSX", ".DS_Store")


@dataclass(frozen=True)
class Archive:
    """An archive of a release, in one file or in several.

    Attributes:
        name: Its path in the repository, without what numbers the pieces.
        pieces: In the order in which they are joined.
        folder: Folder below the root that it is unpacked into; "" for the root.
    """

    name: str
    pieces: tuple[RemoteFile, ...]
    folder: str

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.size for piece in self.pieces)

    @property
    def digest(self) -> str:
        """What it is, whatever commit it belongs to."""
        text = "\n".join(f"{piece.path} {piece.digest}" for piece in self.pieces)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def largest_content(self) -> int:
        """Bytes that its members may have together."""
        return _ALWAYS_ALLOWED + _LARGEST_RATIO * self.size


def archives_among(files: Iterable[tuple[RemoteFile, str]]) -> tuple[Archive, ...]:
    """The archives that some files make.

    Args:
        files: Each with the folder that it is unpacked into.
    """
    pieces: dict[str, list[RemoteFile]] = {}
    folders: dict[str, str] = {}
    for file, folder in sorted(files, key=lambda pair: pair[0].path):
        name = archive_of(file.path)
        if name is not None:
            pieces.setdefault(name, []).append(file)
            folders[name] = folder
    return tuple(Archive(name, tuple(its), folders[name]) for name, its in pieces.items())


def path_below(root: Path, name: str, what: str) -> Path:
    """The path of a name below a folder.

    Args:
        root: The folder.
        name: As an archive or the hub writes it.
        what: Who wrote it, for the message.

    Raises:
        FetchError: If it would be anywhere else, or among the notes of the download.
    """
    path = PurePosixPath(name)
    bad = (
        not name
        or path.is_absolute()
        or ".." in path.parts
        or any(character in name for character in "\\\0")
        or (path.parts and (path.parts[0].endswith(":") or path.parts[0] == STATE))
        or not path.parts
    )
    if bad:
        raise FetchError(
            f"{what} holds {name!r}, which leads out of the folder it belongs in; it is not "
            "unpacked, ask its authors"
        )
    return root.joinpath(*path.parts)


def partial_of(root: Path, file: RemoteFile) -> Path:
    """The file that receives the bytes of another one.

    Named by what comes, so that a new version begins anew, and by where it goes, because a
    repository may hold the same bytes twice.
    """
    place = hashlib.sha256(file.path.encode()).hexdigest()[:12]
    return root / STATE / "parts" / f"{file.digest}-{place}.part"


def is_litter(name: str) -> bool:
    """Whether a member is what a file manager leaves behind."""
    parts = PurePosixPath(name).parts
    return any(part in _LITTER for part in parts)
