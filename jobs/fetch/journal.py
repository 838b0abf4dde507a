"""What has been fetched and unpacked, in files that survive a kill at any moment.

Below the root, `.tango-get/` holds a line per checked file and, for every archive, a line per
member with the byte at which the next one begins. A torn last line counts as not written.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from jobs.fetch.archives import STATE, Archive
from jobs.fetch.hub import FetchError, RemoteFile
from jobs.fetch.stream import digest_of


class ArchiveJournal:
    """How far an archive is unpacked.

    Args:
        root: Of the release.
        archive: Which one; notes about another version of it count for nothing.
    """

    def __init__(self, root: Path, archive: Archive) -> None:
        self._root, self._archive = root, archive
        self._path = root / STATE / "archives" / f"{archive.name.replace('/', '--')}.jsonl"
        self._output: IO[str] | None = None
        self.members: dict[str, int] = {}
        self.next_byte = 0
        self.is_complete = False
        lines = list(_lines(self._path))
        if lines and lines[0] == {"archive": archive.digest}:
            for line in lines[1:]:
                self._take(line)
        self._forget_what_is_missing()

    def __enter__(self) -> ArchiveJournal:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as output:  # what was torn or is gone goes away
            output.write(json.dumps({"archive": self._archive.digest}) + "\n")
            for name, size in self.members.items():
                output.write(json.dumps([name, size, self.next_byte]) + "\n")
        os.replace(temporary, self._path)
        self._output = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None

    def add(self, target: Path, size: int, next_byte: int = 0) -> None:
        """Note that a member is in its place.

        Args:
            target: Its path.
            size: Its bytes.
            next_byte: Where the next member begins; 0 where that is not known.
        """
        name = target.relative_to(self._root).as_posix()
        self.members[name], self.next_byte = size, next_byte
        self._write([name, size, next_byte])

    def has(self, target: Path, size: int) -> bool:
        """Whether a member of that size is in its place."""
        return self.members.get(target.relative_to(self._root).as_posix()) == size

    def finish(self) -> None:
        """Note that nothing is left to unpack."""
        self.is_complete = True
        self._write({"complete": len(self.members)})

    def _write(self, line: Any) -> None:
        assert self._output is not None
        self._output.write(json.dumps(line) + "\n")
        self._output.flush()

    def _take(self, line: Any) -> None:
        if isinstance(line, list) and len(line) == 3:
            self.members[str(line[0])], self.next_byte = int(line[1]), int(line[2])
        elif isinstance(line, dict):
            self.is_complete = line.get("complete") == len(self.members)

    def _forget_what_is_missing(self) -> None:
        """A member that somebody removed has to be unpacked again, so all is read again."""
        there = {
            name: size for name, size in self.members.items() if _size_of(self._root / name) == size
        }
        if len(there) < len(self.members):
            self.members, self.next_byte, self.is_complete = there, 0, False


class FileJournal:
    """Which files of a release are here and have been checked.

    Args:
        root: Of the release.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / STATE / "files.jsonl"
        self._known: dict[str, tuple[str, int, int]] = {}
        for line in _lines(self._path):
            if isinstance(line, list) and len(line) == 4:
                self._known[str(line[0])] = (str(line[1]), int(line[2]), int(line[3]))

    def is_here(self, file: RemoteFile, target: Path) -> bool:
        """Whether a file is in its place and is the hub's; a new one is read to find out.

        Raises:
            FetchError: If there is another file, which no download wrote.
        """
        try:
            stat = target.stat()
        except OSError:
            return False
        known = self._known.get(file.path)
        if known is not None and known[1:] == (stat.st_size, stat.st_mtime_ns):
            return known[0] == file.digest
        if stat.st_size == file.size:
            with target.open("rb") as stream:
                if digest_of(stream, file) == file.digest:
                    self.add(file, target)
                    return True
        raise FetchError(
            f"{target} is another file than {file.path} of the hub ({stat.st_size} bytes there, "
            f"{file.size} on the hub); move it away, or choose another --root"
        )

    def add(self, file: RemoteFile, target: Path) -> None:
        """Note that a file is in its place."""
        stat = target.stat()
        self._known[file.path] = (file.digest, stat.st_size, stat.st_mtime_ns)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as output:
            line = [file.path, *self._known[file.path]]
            output.write(f"{json.dumps(line)}\n")


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold a folder for one download.

    Raises:
        FetchError: If another process fills it, or it cannot be written.
    """
    state = folder / STATE
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = (state / "lock").open("w")
    except OSError as error:
        raise FetchError(f"cannot write to {folder}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchError(
                f"another process downloads to {folder}; wait for its end, or stop it"
            ) from None
        yield


def _lines(path: Path) -> Iterator[Any]:
    """JSON of every line that is whole."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _size_of(path: Path) -> int:
    """Bytes of a file; less than 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
