"""Unpack zip and tar archives, whole or in pieces, member by member.

Every member is written to a temporary file, renamed when it is complete, and recorded in
`.tango-get` below the root, so that an interrupted process is continued with the next member.
Links, devices, paths outside of the directory, and archives that unpack to far more than their own
size are refused.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import IO, Any

from jobs.fetch import hub
from jobs.units import human_bytes
from tango_core.benchmarks.releases import archive_of

_CHUNK = 2**20
# Text compresses to about a twentieth, videos and images hardly; zip bombs to a thousandth.
_LARGEST_RATIO = 100
_ALWAYS_ALLOWED = 64 * 2**20
_MOST_MEMBERS = 5_000_000
_LITTER = {"__MACOSX", ".DS_Store"}


@dataclass(frozen=True)
class Archive:
    """An archive of a release, in one file or in several.

    Attributes:
        name: Its path in the repository, without the number of a piece.
        pieces: In the order in which they are joined.
        folder: Folder below the root that it is unpacked into; "" for the root.
    """

    name: str
    pieces: tuple[hub.RemoteFile, ...]
    folder: str

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.size for piece in self.pieces)

    @property
    def digest(self) -> str:
        """Identifies the content, in whatever commit."""
        text = "\n".join(f"{piece.path} {piece.digest}" for piece in self.pieces)
        return hashlib.sha256(text.encode()).hexdigest()


def archives_among(files: Iterable[tuple[hub.RemoteFile, str]]) -> tuple[Archive, ...]:
    """Group files into archives; an archive may consist of several files.

    Args:
        files: Each with the folder that it is unpacked into.
    """
    pieces: dict[tuple[str, str], list[hub.RemoteFile]] = {}
    for file, folder in sorted(files, key=lambda pair: pair[0].path):
        name = archive_of(file.path)
        if name is not None:
            pieces.setdefault((name, folder), []).append(file)
    return tuple(Archive(name, tuple(its), folder) for (name, folder), its in pieces.items())


class Unpacked:
    """The record of what is unpacked of an archive.

    A line per member, with the byte of a tar at which the next one begins.

    Args:
        root: Of the release.
        archive: Which one; a record of another version of it counts for nothing.

    Attributes:
        members: Path below the root -> bytes.
        next_byte: Where the next member begins; 0 where that is not known.
        is_complete: Whether nothing is left to unpack.
    """

    def __init__(self, root: Path, archive: Archive) -> None:
        self._root, self._archive = root, archive
        self._path = root / hub.STATE / "archives" / f"{archive.name.replace('/', '--')}.jsonl"
        self.members: dict[str, int] = {}
        self.next_byte, self.is_complete = 0, False
        first, *lines = [*hub.read_lines(self._path), None]
        self._is_new = first != {"archive": archive.digest}
        for line in () if self._is_new else lines:
            if isinstance(line, list) and len(line) == 3:
                self.members[str(line[0])], self.next_byte = int(line[1]), int(line[2])
            elif isinstance(line, dict):
                self.is_complete = line.get("complete") == len(self.members)
        here = {
            name: size for name, size in self.members.items() if hub.size_of(root / name) == size
        }
        if len(here) < len(self.members):  # a removed member is somewhere before `next_byte`
            self.members, self.next_byte, self.is_complete = here, 0, False

    def has(self, target: Path, size: int) -> bool:
        """Whether a member of that size is in its place."""
        return self.members.get(target.relative_to(self._root).as_posix()) == size

    def add(self, target: Path, size: int, next_byte: int = 0) -> None:
        """Record that a member is in its place."""
        name = target.relative_to(self._root).as_posix()
        self.members[name], self.next_byte = size, next_byte
        self._append([name, size, next_byte])

    def finish(self) -> None:
        """Record that nothing is left to unpack."""
        self.is_complete = True
        self._append({"complete": len(self.members)})

    def _append(self, line: object) -> None:
        if self._is_new:
            self._path.unlink(missing_ok=True)
            hub.append_line(self._path, {"archive": self._archive.digest})
            self._is_new = False
        hub.append_line(self._path, line)


def unpack(root: Path, archive: Archive, *, keep: bool) -> int:
    """Unpack an archive whose pieces are below the root at their paths in the repository.

    Args:
        root: Of the release.
        archive: What to unpack.
        keep: Whether the pieces stay; else each is removed as soon as nothing needs it.

    Returns:
        Number of its members.

    Raises:
        FetchError: If the archive is damaged, dangerous or of a kind that is not read, or the disk
            is full.
    """
    paths = [root.joinpath(*piece.path.split("/")) for piece in archive.pieces]
    done = Unpacked(root, archive)
    try:
        if not done.is_complete:
            pieces = _Joined(
                list(zip(paths, [piece.size for piece in archive.pieces], strict=True))
            )
            with io.BufferedReader(pieces, _CHUNK) as stream:  # a bare read ends with its piece
                _unpack_members(root, archive, stream, done, [] if keep else paths)
            done.finish()
    except hub.FetchError:
        raise
    # A RuntimeError stands for an archive that is encrypted or of an unknown kind.
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError) as error:
        raise hub.FetchError(
            f"{archive.name} cannot be unpacked: {' '.join(str(error).split())}; it is as the hub "
            "has it: report it to its authors, or unpack it with another program"
        ) from None
    except OSError as error:
        raise hub.FetchError(
            f"cannot unpack {archive.name} to {root}: {error.strerror or error}; what is unpacked "
            "is kept, make room and give the same command again"
        ) from None
    if not keep:
        for path in paths:
            path.unlink(missing_ok=True)
    return len(done.members)


@dataclass(frozen=True)
class _Member:
    """A member of an archive that is no folder.

    Attributes:
        name: As the archive has it.
        size: Bytes as the archive states them.
        is_file: Whether it is a file, and no link or device.
        open: Opens it for reading.
        next_byte: Where the next member of a tar begins; 0 where that is not known.
    """

    name: str
    size: int
    is_file: bool
    open: Callable[[], Any]
    next_byte: int = 0


def _zip_members(stream: IO[bytes]) -> Iterator[_Member]:
    with zipfile.ZipFile(stream) as opened:
        for info in opened.infolist():
            if not info.is_dir():
                is_file = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
                yield _Member(info.filename, info.file_size, is_file, partial(opened.open, info))


def _tar_members(stream: IO[bytes], start: int, *, compressed: bool) -> Iterator[_Member]:
    stream.seek(start)
    with tarfile.open(fileobj=stream, mode="r:gz" if compressed else "r:") as opened:
        while (member := opened.next()) is not None:
            next_byte = 0 if compressed else opened.offset
            if not member.isdir():
                read = partial(opened.extractfile, member)
                yield _Member(member.name, member.size, member.isreg(), read, next_byte)
            opened.members = []  # type: ignore[attr-defined]  # a million members are a gigabyte
        if not compressed:
            stream.seek(opened.offset)  # the library takes anything that is no header for the end
            if any(stream.read(512)):
                raise tarfile.ReadError("no member begins where one should")


def _unpack_members(
    root: Path, archive: Archive, stream: IO[bytes], done: Unpacked, removable: Sequence[Path]
) -> None:
    """Unpack the members that are not unpacked yet.

    Args:
        root: Of the release.
        archive: What to unpack.
        stream: Its bytes.
        done: What is unpacked; members are added.
        removable: Pieces to remove as soon as nothing needs them.
    """
    is_zip, is_tar = archive.name.endswith(".zip"), archive.name.endswith(".tar")
    members = (
        _zip_members(stream)
        if is_zip
        else _tar_members(stream, done.next_byte, compressed=not is_tar)
    )
    folder, total = root.joinpath(*archive.folder.split("/")), 0
    ends = list(accumulate(piece.size for piece in archive.pieces))
    for count, member in enumerate(members, 1):
        total += member.size
        if total > _ALWAYS_ALLOWED + _LARGEST_RATIO * archive.size or count > _MOST_MEMBERS:
            raise hub.FetchError(
                f"{archive.name} of {human_bytes(archive.size)} would unpack to more than "
                f"{human_bytes(total)}; that is no archive of videos, so it is not unpacked"
            )
        if not member.is_file:
            raise hub.FetchError(f"{archive.name} holds {member.name!r}, a link or a device")
        if _LITTER.intersection(PurePosixPath(member.name).parts):
            continue
        target = hub.path_below(folder, member.name, archive.name)
        if not done.has(target, member.size):
            _write(member, target, root / hub.STATE / "parts" / f"{os.getpid()}.member")
            done.add(target, member.size, member.next_byte)
        for path, end in zip(removable, ends, strict=False):
            if end < done.next_byte:  # the library reads one byte back
                path.unlink(missing_ok=True)


def _write(member: _Member, target: Path, beside: Path) -> None:
    """Write a member to a temporary file, and rename it."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    try:
        with member.open() as source, beside.open("wb") as output:
            shutil.copyfileobj(source, output, _CHUNK)
        if hub.size_of(beside) != member.size:
            raise tarfile.ReadError(f"{member.name} is not {member.size} bytes long")
        hub.move(beside, target)
    finally:
        beside.unlink(missing_ok=True)


class _Joined(io.RawIOBase):
    """Reads several files as one; files before the first read position need not exist.

    Args:
        files: Each with its size in bytes.
    """

    def __init__(self, files: Sequence[tuple[Path, int]]) -> None:
        self._files, self._at = files, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_CUR: self._at, io.SEEK_END: sum(size for _, size in self._files)}
        self._at = max(0, offset + starts.get(whence, 0))
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, at most to the end of a file."""
        start = 0
        for path, size in self._files:
            if self._at < start + size:
                with path.open("rb") as piece:
                    piece.seek(self._at - start)
                    count = piece.readinto(memoryview(buffer)[: start + size - self._at])
                self._at += count
                return count
            start += size
        return 0
