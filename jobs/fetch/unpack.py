"""Zip and tar archives into folders, member by member; a killed one goes on where it was.

Every member is written beside its place and moved there when it is whole. Links, devices, names
that lead out of the folder, and archives that unpack to far more than they hold are refused.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from jobs.fetch.archives import STATE, Archive, is_litter, path_below
from jobs.fetch.hub import FetchError
from jobs.fetch.journal import ArchiveJournal
from jobs.fetch.pieces import Pieces
from jobs.fetch.stream import put
from jobs.units import human_bytes

logger = logging.getLogger(__name__)

_CHUNK = 2**20
_MOST_MEMBERS = 5_000_000


def unpack(root: Path, archive: Archive, *, keep: bool, stop: threading.Event | None = None) -> int:
    """Unpack an archive whose pieces lie below the root at their paths in the repository.

    Args:
        root: Of the release.
        archive: What to unpack.
        keep: Whether the pieces stay; else each is removed as soon as nothing needs it.
        stop: Ends it between two members.

    Returns:
        Members that are in their places; all of them unless it was stopped.

    Raises:
        FetchError: If the archive is damaged, dangerous or of a kind that is not read, or the disk
            is full.
    """
    paths = [root.joinpath(*piece.path.split("/")) for piece in archive.pieces]
    work = _Work(root, archive, paths, keep, stop or threading.Event())
    try:
        with ArchiveJournal(root, archive) as journal:
            if not journal.is_complete:
                work.run(journal)
            if not journal.is_complete:
                return len(journal.members)
            count = len(journal.members)
    except FetchError:
        raise
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise FetchError(
            f"{archive.name} is damaged or cut off: {' '.join(str(error).split())}; it is as the "
            "hub has it, so ask its authors"
        ) from None
    except NotImplementedError as error:
        raise FetchError(
            f"{archive.name} cannot be unpacked: {error}; unpack it with another program"
        ) from None
    except OSError as error:
        raise FetchError(
            f"cannot unpack {archive.name} to {root}: {error.strerror or error}; what is unpacked "
            "is kept, make room and give the same command again"
        ) from None
    if not keep:
        for path in paths:
            path.unlink(missing_ok=True)
    return count


class _Work:
    """One archive on its way."""

    def __init__(
        self, root: Path, archive: Archive, paths: Sequence[Path], keep: bool, stop: threading.Event
    ) -> None:
        self._root, self._archive, self._paths = root, archive, paths
        self._keep, self._stop = keep, stop
        self._folder = root.joinpath(*archive.folder.split("/")) if archive.folder else root
        self._sizes = [piece.size for piece in archive.pieces]

    def run(self, journal: ArchiveJournal) -> None:
        """Unpack by the kind that the name says."""
        pieces = Pieces(list(zip(self._paths, self._sizes, strict=True)))
        # Buffered, because a bare read ends with its piece.
        with io.BufferedReader(pieces, _CHUNK) as stream:
            if self._archive.name.endswith(".zip"):
                self._zip(stream, journal)
            elif self._archive.name.endswith(".tar"):
                self._tar(stream, journal)
            else:
                with tarfile.open(fileobj=stream, mode="r:gz") as opened:
                    if self._members(opened, journal, has_offsets=False):
                        journal.finish()

    def _zip(self, stream: IO[bytes], journal: ArchiveJournal) -> None:
        with zipfile.ZipFile(stream) as opened:
            infos = [info for info in opened.infolist() if not info.is_dir()]
            self._raise_if_bomb(sum(info.file_size for info in infos), len(infos))
            for info in infos:
                if self._stop.is_set():
                    return
                if is_litter(info.filename):
                    continue
                mode = info.external_attr >> 16
                if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                    raise self._refused(info.filename)
                if info.flag_bits & 1:
                    raise FetchError(
                        f"{self._archive.name} is encrypted; unpack it by hand with its password"
                    )
                target = path_below(self._folder, info.filename, self._archive.name)
                if not journal.has(target, info.file_size):
                    with opened.open(info) as source:
                        self._write(source, target, info.file_size)
                    journal.add(target, info.file_size)
        journal.finish()

    def _tar(self, stream: IO[bytes], journal: ArchiveJournal) -> None:
        stream.seek(journal.next_byte)
        if journal.next_byte and _is_end(stream):  # killed behind the last member
            journal.finish()
            return
        stream.seek(journal.next_byte)
        with tarfile.open(fileobj=stream, mode="r:") as opened:
            if not self._members(opened, journal, has_offsets=True):
                return
            stream.seek(opened.offset)  # the library takes anything that is no header for the end
            if not _is_end(stream):
                raise tarfile.ReadError("no member begins where one should")
        journal.finish()

    def _members(
        self, opened: tarfile.TarFile, journal: ArchiveJournal, *, has_offsets: bool
    ) -> bool:
        """Unpack what is not in its place; whether it came to the end."""
        total = count = 0
        for member in opened:
            if self._stop.is_set():
                return False
            total, count = total + member.size, count + 1
            self._raise_if_bomb(total, count)
            if member.isdir() or is_litter(member.name):
                continue
            if not member.isreg():
                raise self._refused(member.name)
            target = path_below(self._folder, member.name, self._archive.name)
            # What follows is read from here; the library has not looked behind this member yet.
            next_byte = member.offset_data + -(-member.size // 512) * 512 if has_offsets else 0
            if member.issparse():
                next_byte = journal.next_byte
            if not journal.has(target, member.size):
                source = opened.extractfile(member)
                assert source is not None
                with source:
                    self._write(source, target, member.size)
                journal.add(target, member.size, next_byte)
            if has_offsets and not self._keep:
                self._remove_read_pieces(journal.next_byte)
            # A list of a million members is a gigabyte.
            opened.members = []  # type: ignore[attr-defined]
        return True

    def _write(self, source: IO[bytes], target: Path, size: int) -> None:
        """Write a member beside its place, and move it there."""
        beside = self._root / STATE / "parts" / f"{os.getpid()}-{threading.get_ident()}.member"
        beside.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as output:
                shutil.copyfileobj(source, output, _CHUNK)
                written = output.tell()
            if written != size:
                raise tarfile.ReadError(f"{target.name} has {written} of {size} bytes")
            put(beside, target)
        finally:
            beside.unlink(missing_ok=True)

    def _remove_read_pieces(self, next_byte: int) -> None:
        """Remove the pieces that nothing needs any more: the library reads one byte back."""
        end = 0
        for path, size in zip(self._paths, self._sizes, strict=True):
            end += size
            if end < next_byte:
                path.unlink(missing_ok=True)

    def _raise_if_bomb(self, total: int, count: int) -> None:
        if total > self._archive.largest_content or count > _MOST_MEMBERS:
            raise FetchError(
                f"{self._archive.name} of {human_bytes(self._archive.size)} would unpack to "
                f"{count:,} files of {human_bytes(total)}; that is no archive of videos, so it is "
                "not unpacked"
            )

    def _refused(self, name: str) -> FetchError:
        return FetchError(
            f"{self._archive.name} holds {name!r}, a link or a device; only files and folders are "
            "unpacked, ask its authors"
        )


def _is_end(stream: IO[bytes]) -> bool:
    """Whether the end of a tar is next: a block of zeros, or nothing."""
    block = stream.read(512)
    if not block:
        logger.warning("an archive ends without its end mark; it may be cut off")
    return not any(block)
