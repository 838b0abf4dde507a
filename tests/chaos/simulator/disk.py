"""A disk in memory that forgets, when the power fails, what nobody synchronised.

Names change in order, as the journals of ext4 and XFS keep them: what a power failure leaves is a
prefix of the changes, and synchronising any file makes all earlier ones last. The bytes of a file
that was not synchronised may be there, cut off or missing, whatever its name.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa

from pipeline.storage.files import Disk
from pipeline.storage.objects import Stored
from tests.chaos.simulator.world import START, Process


@dataclass(eq=False)
class Inode:
    """The bytes of a file, whatever its names."""

    data: bytearray = field(default_factory=bytearray)
    synced: bool = False
    written: float = 0.0


@dataclass
class Names:
    """Which names there are."""

    files: dict[str, Inode] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def copy(self) -> Names:
        """A second table of the same files."""
        return Names(dict(self.files), set(self.folders))


@dataclass(eq=False)
class DiskState:
    """What is on a disk, and what of it would survive.

    Attributes:
        names: As programs see them.
        lasting: As they are after a power failure.
        pending: Changes between the two, in order.
        full_until: Until when nothing can be written.
    """

    names: Names = field(default_factory=Names)
    lasting: Names = field(default_factory=Names)
    pending: list[Callable[[Names], object]] = field(default_factory=list)
    full_until: float = -1.0

    def change(self, how: Callable[[Names], object]) -> None:
        """Change names."""
        how(self.names)
        self.pending.append(how)

    def settle(self) -> None:
        """Let all changes of names last."""
        self.pending.clear()
        self.lasting = self.names.copy()

    def cut_power(self, lost: int, torn: float) -> None:
        """Forget what does not last."""
        for how in self.pending[: max(0, len(self.pending) - lost)]:
            how(self.lasting)
        self.names = self.lasting
        for inode in self.names.files.values():
            if not inode.synced:
                del inode.data[int(len(inode.data) * torn) :]
                inode.synced = True
        self.settle()

    def read(self, path: str) -> bytes | None:
        """Without a step, for the oracle."""
        inode = self.names.files.get(path)
        return None if inode is None else bytes(inode.data)

    def paths(self) -> list[str]:
        """Of all files."""
        return sorted(self.names.files)

    def put(self, path: str, data: bytes) -> None:
        """Without a step, as something outside of the world does."""
        self.names.files[path].data[:] = data

    def lose(self, path: str) -> None:
        """Without a step."""
        self.change(lambda names: names.files.pop(path, None))


@dataclass(frozen=True)
class SimulatedDisk(Disk):
    """The disk as one process sees it."""

    state: DiskState
    process: Process
    listed: Callable[[str, list[Stored]], list[Stored]] = lambda path, found: found

    def listing(self, path: str) -> list[Stored]:
        self.process.step(f"list {path}")
        names, folder = self.state.names, path.rstrip("/")
        found = [
            _info(name, inode)
            for name, inode in names.files.items()
            if name.rpartition("/")[0] == folder
        ]
        folders = [
            Stored(name, False) for name in names.folders if name.rpartition("/")[0] == folder
        ]
        return self.listed(path, [*reversed(found), *sorted(folders, key=lambda f: f.path)])

    def is_folder(self, path: str) -> bool:
        self.process.step(f"is folder {path}")
        return path.rstrip("/") in self.state.names.folders

    def size(self, path: str) -> int:
        self.process.step(f"size {path}")
        inode = self.state.names.files.get(path)
        return len(inode.data) if inode else 0

    def opened(self, path: str) -> pa.NativeFile:
        self.process.step(f"open {path}")
        inode = self.state.names.files.get(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        return pa.BufferReader(bytes(inode.data))

    def make_folder(self, path: str, *, exist_ok: bool) -> None:
        self.process.step(f"mkdir {path}")
        path = path.rstrip("/")
        if path in self.state.names.folders:
            if not exist_ok:
                raise _error(errno.EEXIST, path)
            return
        self._raise_if_full()
        above = path
        while above and above not in self.state.names.folders:
            self.state.change(lambda names, above=above: names.folders.add(above))
            above = above.rpartition("/")[0]

    def new_file(self, path: str) -> OpenFile:
        self.process.step(f"create {path}")
        self._raise_if_full()
        inode = Inode(written=self.process.world.time)
        self.state.change(lambda names: names.files.__setitem__(path, inode))
        return OpenFile(self, path, inode)

    def sync(self, file: Any) -> None:
        self.process.step(f"sync {file.path}")
        self._raise_if_full()
        file.inode.synced = True
        self.state.settle()

    def move(self, path: str, new_path: str) -> None:
        self.process.step(f"rename {path} {new_path}")
        if path not in self.state.names.files:
            raise _error(errno.ENOENT, path)
        self.state.change(
            lambda names: (
                names.files.update({new_path: names.files.pop(path)})
                if path in names.files
                else None
            )
        )

    def link(self, path: str, new_path: str) -> None:
        self.process.step(f"link {path} {new_path}")
        if new_path in self.state.names.files:
            raise _error(errno.EEXIST, path)
        inode = self.state.names.files[path]
        self.state.change(lambda names: names.files.__setitem__(new_path, inode))

    def delete(self, path: str) -> None:
        self.process.step(f"remove {path}")
        if path not in self.state.names.files:
            raise _error(errno.ENOENT, path)
        self.state.change(lambda names: names.files.pop(path, None))

    def _raise_if_full(self) -> None:
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
            self.disk._raise_if_full()
            self.inode.data += piece
            self.inode.synced = False
        self.inode.written = self.disk.process.world.time
        return len(content)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _info(path: str, inode: Inode) -> Stored:
    return Stored(path, True, len(inode.data), modified=START + timedelta(seconds=inode.written))
