"""Files on a local disk or in an object store, written atomically."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pipeline.storage.objects import ObjectStore, Stored
from pipeline.storage.urls import Place, Url, place
from tango_core.errors import InputError

# pyarrow is imported when a directory is opened: commands that only name one start without it.
if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs


@dataclass(frozen=True)
class Disk:
    """The disk of this machine, by absolute paths, with the errors of the operating system.

    Every method is one step after which a process may be killed, so that a test can hand a storage
    a disk that fails, or forgets what was not synchronised, between any two of them.
    """

    def entries(self, path: str) -> list[pafs.FileInfo]:
        """Everything directly in a directory; nothing if it is not there."""
        import pyarrow.fs as pafs

        selector = pafs.FileSelector(path, allow_not_found=True)
        found: list[pafs.FileInfo] = _arrow().get_file_info(selector)
        return found

    def is_folder(self, path: str) -> bool:
        """Whether a directory is there."""
        return Path(path).is_dir()

    def size(self, path: str) -> int:
        """Bytes of a file; 0 if it is not there."""
        file = Path(path)
        return file.stat().st_size if file.is_file() else 0

    def opened(self, path: str) -> pa.NativeFile:
        """A file to read parts of."""
        return _arrow().open_input_file(path)

    def make_folder(self, path: str, *, exist_ok: bool) -> None:
        """Make a directory, and those above it."""
        Path(path).mkdir(parents=True, exist_ok=exist_ok)

    def remove_folder(self, path: str) -> None:
        """Remove an empty directory."""
        Path(path).rmdir()

    def new_file(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """A file to write to; visible under this name at once."""
        return Path(path).open("wb")

    def sync(self, file: IO[bytes]) -> None:
        """Return when what was written to an open file would survive a power failure."""
        file.flush()
        os.fsync(file.fileno())

    def replace(self, path: str, new_path: str) -> None:
        """Give a file another name in one step; a file of that name is gone."""
        Path(path).replace(new_path)

    def link(self, path: str, new_path: str) -> None:
        """Give a file one more name in one step, NFS included; `FileExistsError` if it is taken."""
        os.link(path, new_path)

    def remove(self, path: str) -> None:
        """Remove a file; `FileNotFoundError` if it is not there."""
        Path(path).unlink()


def _arrow() -> Any:
    """This disk as pyarrow sees it; that is imported when a file is opened."""
    import pyarrow.fs as pafs

    return pafs.LocalFileSystem()


@dataclass(frozen=True)
class Storage:
    """A directory that may be local (`runs/cache`) or remote (`s3://bucket/cache`).

    Caches, answers and run directories reach files through it alone, so a test can hand them a
    directory that fails.

    Attributes:
        filesystem: The disk of this machine, or the store behind a URL.
        root: Path inside that file system.
    """

    filesystem: Disk | ObjectStore
    root: str

    @classmethod
    def at(cls, location: str | Place | Storage) -> Storage:
        """Open a path or a URL that fsspec understands; a storage is returned as it is.

        Raises:
            ValueError: If nothing serves the URL, or it holds a password.
            ModuleNotFoundError: If the package that serves it is not installed.
        """
        if isinstance(location, Storage):
            return location
        where = place(location)
        if isinstance(where, Url):
            store = ObjectStore(where.scheme)
            try:
                store.open()
            except ValueError as error:
                raise InputError(f"cannot open {where}: {error}") from error
            return cls(store, where.path)
        return cls(Disk(), str(where.absolute()))

    def child(self, name: str) -> Storage:
        """The directory `name` inside this one."""
        return replace(self, root=self.path(name))

    def path(self, name: str) -> str:
        """Path of the file `name` in this directory."""
        return f"{self.root.rstrip('/')}/{name}"

    @property
    def store(self) -> ObjectStore | None:
        """The store this is in; `None` on a local disk, where a rename is atomic."""
        return self.filesystem if isinstance(self.filesystem, ObjectStore) else None

    @property
    def _disk(self) -> Disk:
        """The disk of this machine, where `store` is `None`."""
        assert isinstance(self.filesystem, Disk)
        return self.filesystem

    @property
    def is_local(self) -> bool:
        """Whether a rename is atomic here; object stores commit an object when its upload ends."""
        return self.store is None

    @property
    def location(self) -> str:
        """Path or URL, as `at` takes it and messages name it."""
        return self.root if self.store is None else self.store.url(self.root)

    def files(self) -> list[pafs.FileInfo]:
        """Every file directly in here with its size and time, hidden and empty ones, too."""
        return [info for info in self._entries() if info.is_file]

    def names(self, suffix: str = "") -> list[str]:
        """Names of the visible, non-empty files directly in here, sorted."""
        return sorted(
            info.base_name
            for info in self.files()
            if info.size > 0  # what a power failure may leave of a file is no file
            and info.base_name.endswith(suffix)
            and not info.base_name.startswith(".")
        )

    def folders(self) -> list[str]:
        """Names of the directories directly in this one, sorted."""
        return sorted(info.base_name for info in self._entries() if not info.is_file)

    def _entries(self) -> list[pafs.FileInfo]:
        """Everything directly in here; nothing if the directory is not there."""
        if self.store is not None:
            return [_file_info(entry) for entry in self.store.listing(self.root)]
        return self._disk.entries(self.root)

    def is_folder(self) -> bool:
        """Whether there is anything here to look into."""
        if self.store is not None:
            return self.store.is_folder(self.root)
        return self._disk.is_folder(self.root)

    def exists(self, name: str) -> bool:
        """Whether the file `name` is there and not empty."""
        return self.size(name) > 0

    def size(self, name: str) -> int:
        """Bytes of the file `name`; 0 if it is not there."""
        if self.store is not None:
            found = self.store.stat(self.path(name))
            return found.size if found else 0
        return self._disk.size(self.path(name))

    def read(self, name: str) -> bytes:
        """All bytes of a file.

        Raises:
            FileNotFoundError: If it is not there.
        """
        if self.store is not None:
            return self.store.read(self.path(name))
        with self.opened(name) as file:
            return bytes(file.read())

    def opened(self, name: str) -> pa.NativeFile:
        """A file to read parts of; close it after use.

        Raises:
            FileNotFoundError: If it is not there.
        """
        if self.store is not None:
            import pyarrow as pa

            return pa.PythonFile(self.store.opened(self.path(name)), mode="r")
        return self._disk.opened(self.path(name))

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Put a file in place atomically: readers see the old state or the new one."""
        if self.store is not None:
            self.store.write(self.path(name), data)
            return
        with self.writing(name) as file:
            file.write(data)

    def create_file(self, name: str, data: bytes) -> None:
        """Put a new file in place, whole; of several callers exactly one succeeds.

        That holds on local disks and NFS, and by conditional PUT on S3 and Google Cloud Storage.
        In a store without one this looks first and then writes.

        Args:
            name: Of the file.
            data: In a store, bytes that no other caller writes: they tell who succeeded.

        Raises:
            FileExistsError: If it is there.
        """
        if self.store is not None:
            self.store.create(self.path(name), data)
            return
        aside = f".{uuid.uuid4().hex}.tmp"
        self.write(aside, data)
        try:
            self._disk.link(self.path(aside), self.path(name))
        finally:
            self.delete(aside)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file to fill in pieces, put in place when the block ends and not if it fails."""
        if self.store is not None:
            with self.store.writing(self.path(name)) as remote:
                yield remote
            return
        self._disk.make_folder(self.root, exist_ok=True)
        # A leading dot hides the unfinished file from every Parquet reader of the directory.
        aside = self.path(f".{uuid.uuid4().hex}.tmp")
        try:
            with self._disk.new_file(aside) as file:
                yield file
                self._disk.sync(file)
            self._disk.replace(aside, self.path(name))
        except OSError as error:
            if error.errno is not None and error.filename is None:  # such as a full disk
                error.filename = self.path(name)
            raise
        finally:
            with suppress(FileNotFoundError):
                self._disk.remove(aside)

    def move(self, name: str, new_name: str) -> None:
        """Give a file another name in this directory; one of that name is replaced."""
        if self.store is not None:
            self.store.move(self.path(name), self.path(new_name))
        else:
            self._disk.replace(self.path(name), self.path(new_name))

    def delete(self, name: str) -> None:
        """Remove a file."""
        if self.store is not None:
            self.store.delete(self.path(name))
        else:
            self._disk.remove(self.path(name))

    def create(self) -> None:
        """Make this directory; of several callers exactly one succeeds.

        A store has no empty directories: there a hidden object stands for it.

        Raises:
            FileExistsError: If it is there.
            OSError: If it cannot be made.
        """
        if self.is_local:
            self._disk.make_folder(self.root, exist_ok=False)
        elif self.is_folder():
            raise FileExistsError(self.location)
        else:
            self.create_file(".made", uuid.uuid4().hex.encode())

    def remove_if_empty(self) -> None:
        """Remove this directory if nothing is in it; object stores have no empty directories."""
        if self.is_local:
            with suppress(OSError):  # something is in it
                self._disk.remove_folder(self.root)


def _file_info(entry: Stored) -> pafs.FileInfo:
    """A line of a store's listing as pyarrow's."""
    import pyarrow.fs as pafs

    if not entry.is_file:
        return pafs.FileInfo(entry.path, pafs.FileType.Directory)
    return pafs.FileInfo(entry.path, pafs.FileType.File, mtime=entry.modified, size=entry.size)
