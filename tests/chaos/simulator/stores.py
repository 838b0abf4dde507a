"""The stores of a simulated world: a disk that forgets, and an object store whose requests fail.

Names on the disk change in order, as the journals of ext4 and XFS keep them: what a power failure
leaves is a prefix of the changes, and synchronising any file makes all earlier ones last. The bytes
of a file that was not synchronised may be there, cut off or missing, whatever its name.

A PUT to the object store is all or nothing. What was refused has had no effect; what was done and
not answered has.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.storage.files import Disk
from pipeline.storage.objects import ObjectStore, Patience, Stored
from tests.chaos.simulator.world import START, Process

T = TypeVar("T")
Listed = Callable[[str, list[Any]], list[Any]]
"""A listing of a directory as it arrives."""

PATIENCE = Patience(first_s=0.0)
TRY_S = 2.0
"""How long a request takes that fails, the pause before the next one included."""


@dataclass(eq=False)
class Inode:
    """The bytes of a file or object, whatever its names.

    Attributes:
        data: Its bytes.
        synced: Whether they survive a power failure.
        written: Seconds since the start of the world.
        version: Differs between all objects that were ever written.
    """

    data: bytearray = field(default_factory=bytearray)
    synced: bool = False
    written: float = 0.0
    version: int = 0


@dataclass(eq=False)
class Contents:
    """What a store holds, by path; the methods take no step of a process."""

    files: dict[str, Inode] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; `None` if it is not there."""
        inode = self.files.get(path)
        return None if inode is None else bytes(inode.data)

    def paths(self) -> list[str]:
        """Of all files."""
        return sorted(self.files)

    def put(self, path: str, data: bytes) -> None:
        """Replace the bytes of a file, as something outside of the world does."""
        self.files[path].data[:] = data

    def lose(self, path: str) -> None:
        """Remove a file."""
        self.files.pop(path, None)


@dataclass(eq=False)
class DiskState(Contents):
    """What is on a disk, and what of it would survive.

    Attributes:
        folders: All directories.
        names: Names of files and folders after every change since the last synchronisation.
        full_until: Until when nothing can be written.
    """

    folders: set[str] = field(default_factory=set)
    names: list[tuple[dict[str, Inode], set[str]]] = field(default_factory=list)
    full_until: float = -1.0

    def __post_init__(self) -> None:
        self.settle()

    def settle(self) -> None:
        """Let all changes of names last."""
        self.names.clear()
        self.changed()

    def changed(self) -> None:
        """Note that names have changed."""
        self.names.append((dict(self.files), set(self.folders)))

    def lose(self, path: str) -> None:
        """Remove a file."""
        super().lose(path)
        self.changed()

    def cut_power(self, lost: int, torn: float) -> None:
        """Forget the last changes of names, and bytes that were not synchronised."""
        self.files, self.folders = self.names[max(0, len(self.names) - 1 - lost)]
        for inode in self.files.values():
            if not inode.synced:
                del inode.data[int(len(inode.data) * torn) :]
                inode.synced = True
        self.settle()


@dataclass(frozen=True)
class SimulatedDisk(Disk):
    """The disk as one process sees it."""

    state: DiskState
    process: Process
    listed: Listed = lambda path, found: found

    def listing(self, path: str) -> list[Stored]:
        self.process.step(f"list {path}")
        inside = [
            Stored(name, True, len(inode.data), modified=_date(inode))
            for name, inode in self.state.files.items()
        ]
        found = [*reversed(inside), *(Stored(name, False) for name in sorted(self.state.folders))]
        folder = path.rstrip("/")
        return self.listed(path, [one for one in found if one.path.rpartition("/")[0] == folder])

    def is_folder(self, path: str) -> bool:
        self.process.step(f"is folder {path}")
        return path.rstrip("/") in self.state.folders

    def size(self, path: str) -> int:
        self.process.step(f"size {path}")
        return len(self.state.read(path) or b"")

    def opened(self, path: str) -> pa.NativeFile:
        self._existing(path, f"open {path}")
        return pa.BufferReader(self.state.read(path))

    def make_folder(self, path: str, *, exist_ok: bool) -> None:
        self.process.step(f"mkdir {path}")
        above = path.rstrip("/")
        if above in self.state.folders:
            if not exist_ok:
                raise _error(errno.EEXIST, path)
            return
        self.raise_if_full()
        while above and above not in self.state.folders:
            self.state.folders.add(above)
            self.state.changed()
            above = above.rpartition("/")[0]

    def new_file(self, path: str) -> OpenFile:
        self.process.step(f"create {path}")
        self.raise_if_full()
        inode = self.state.files[path] = Inode(written=self.process.world.time)
        self.state.changed()
        return OpenFile(self, path, inode)

    def sync(self, file: Any) -> None:
        self.process.step(f"sync {file.path}")
        self.raise_if_full()
        file.inode.synced = True
        self.state.settle()

    def move(self, path: str, new_path: str) -> None:
        self._existing(path, f"rename {path} {new_path}")
        self.state.files[new_path] = self.state.files.pop(path)
        self.state.changed()

    def link(self, path: str, new_path: str) -> None:
        self.process.step(f"link {path} {new_path}")
        if new_path in self.state.files:
            raise _error(errno.EEXIST, path)
        self.state.files[new_path] = self.state.files[path]
        self.state.changed()

    def delete(self, path: str) -> None:
        self._existing(path, f"remove {path}")
        self.state.lose(path)

    def _existing(self, path: str, what: str) -> None:
        """Take a step; then the file must be there."""
        self.process.step(what)
        if path not in self.state.files:
            raise _error(errno.ENOENT, path)

    def raise_if_full(self) -> None:
        """Refuse to write to a full disk."""
        if self.process.world.time < self.state.full_until:
            raise _error(errno.ENOSPC, "the disk")


class OpenFile(io.RawIOBase):
    """A file that is being written."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        super().__init__()
        self.disk, self.path, self.inode = disk, path, inode

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return len(self.inode.data)

    def write(self, data: Any) -> int:
        """In two steps: a process may be killed in the middle of a file."""
        content = bytes(data)
        half = len(content) // 2
        for piece in (content[:half], content[half:]):
            self.disk.process.step(f"write {self.path}")
            self.disk.raise_if_full()
            self.inode.data += piece
            self.inode.synced = False
        self.inode.written = self.disk.process.world.time
        return len(content)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _date(inode: Inode) -> Any:
    """When a file was written, by the clock of the store."""
    return START + timedelta(seconds=inode.written)


class RefusedError(Exception):
    """An answer 503."""

    response: Mapping[str, Any] = {
        "Error": {"Code": "SlowDown"},
        "ResponseMetadata": {"HTTPStatusCode": 503},
    }


@dataclass(eq=False)
class BucketState(Contents):
    """What an object store holds, and how it answers.

    Attributes:
        down_until: Until when it answers 503.
        refused: Requests that are answered 503.
        unanswered: Writes whose answers get lost.
        writes: Number of writes so far.
    """

    down_until: float = -1.0
    refused: int = 0
    unanswered: int = 0
    writes: int = 0


class SimulatedStore(ObjectStore):
    """The store as one process reaches it."""

    def __init__(self, state: BucketState, process: Process, listed: Listed) -> None:
        super().__init__("s3", PATIENCE)
        self.__dict__["fs"] = Requests(state, process, listed)


@dataclass(frozen=True)
class Requests:
    """The part of fsspec's interface that `ObjectStore` uses."""

    state: BucketState
    process: Process
    listed: Listed

    def ask(self, what: str, path: str, effect: Callable[[], T], *, writes: bool = False) -> T:
        """One request."""
        self.process.step(f"{what} {path}")
        state, world = self.state, self.process.world
        if state.refused or world.time < state.down_until:
            state.refused = max(0, state.refused - 1)
            self.process.wait(TRY_S, frozen="/.lease" in path)
            raise RefusedError("503 Slow Down")
        value = effect()
        if writes and state.unanswered:
            state.unanswered -= 1
            self.process.wait(TRY_S, frozen="/.lease" in path)
            raise ConnectionResetError("the answer was lost")
        return value

    def _object(self, path: str) -> Inode:
        if path not in self.state.files:
            raise FileNotFoundError(path)
        return self.state.files[path]

    def _info(self, path: str) -> dict[str, Any]:
        one = self._object(path)
        about = {"ETag": one.version, "LastModified": _date(one)}
        return {"name": path, "type": "file", "size": len(one.data), **about}

    def _below(self, path: str) -> dict[str, Any]:
        beginning = f"{path.strip('/')}/"
        return {name: self._info(name) for name in self.state.files if name.startswith(beginning)}

    def info(self, path: str) -> dict[str, Any]:
        return self.ask("HEAD", path, lambda: self._info(path))

    def ls(self, path: str, detail: bool = True) -> list[Any]:
        def look() -> list[Any]:
            found, length = {}, len(path.strip("/")) + 1
            for name, line in self._below(path).items():
                below, slash, _ = name[length:].partition("/")
                folder = {"name": name[:length] + below, "type": "directory", "size": 0}
                found[below] = folder if slash else line
            if not found:
                raise FileNotFoundError(path)
            return list(found.values())

        return self.listed(path, self.ask("LIST", path, look))

    def find(self, path: str, detail: bool = True) -> dict[str, Any]:
        return self.ask("LIST", path, lambda: self._below(path))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: int
    ) -> bytes:
        return self.ask("GET", path, lambda: bytes(self._object(path).data[start:end]))

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        def put() -> None:
            if mode == "create" and path in self.state.files:
                raise FileExistsError(path)
            self._store(path, data)

        self.ask("PUT if absent" if mode == "create" else "PUT", path, put, writes=True)

    def put_file(self, source: str, path: str) -> None:
        self.pipe_file(path, Path(source).read_bytes())

    def rm_file(self, path: str) -> None:
        self.ask("DELETE", path, lambda: self.state.lose(path), writes=True)

    def cp_file(self, path: str, new_path: str) -> None:
        self.ask("COPY", path, lambda: self._store(new_path, self._object(path).data), writes=True)

    def call_s3(self, method: str, **names: str) -> dict[str, Any]:
        """As far as the age of an object is asked for: the store's own clock."""
        assert method == "head_object"
        now = format_datetime(START + timedelta(seconds=self.process.world.time), usegmt=True)
        headers = {"HTTPHeaders": {"date": now}}
        return {**self.info("/".join(names.values())), "ResponseMetadata": headers}

    def _store(self, path: str, data: bytes | bytearray) -> None:
        self.state.writes += 1
        written, version = self.process.world.time, self.state.writes
        self.state.files[path] = Inode(bytearray(data), True, written, version)
