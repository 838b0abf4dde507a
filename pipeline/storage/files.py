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

# pyarrow is imported only when a directory is opened, because the import is slow.
if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs


@dataclass(frozen=True)
class Disk:
    """Operations on the local disk, by absolute path; they raise the operating system's errors.

    Tests replace this class to simulate crashes, errors and lost unsynchronised data between any
    two operations.
    """

    def entries(self, path: str) -> list[pafs.FileInfo]:
        """Entries of a directory; empty if it does not exist."""
        import pyarrow.fs as pafs

        selector = pafs.FileSelector(path, allow_not_found=True)
        found: list[pafs.FileInfo] = _arrow().get_file_info(selector)
        return found

    def is_folder(self, path: str) -> bool:
        """Whether a directory exists."""
        return Path(path).is_dir()

    def size(self, path: str) -> int:
        """Size of a file in bytes; 0 if it does not exist."""
        file = Path(path)
        return file.stat().st_size if file.is_file() else 0

    def opened(self, path: str) -> pa.NativeFile:
        """A file to read parts of."""
        return _arrow().open_input_file(path)

    def make_folder(self, path: str, *, exist_ok: bool) -> None:
        """Create a directory and its parents."""
        Path(path).mkdir(parents=True, exist_ok=exist_ok)

    def remove_folder(self, path: str) -> None:
        """Remove an empty directory."""
        Path(path).rmdir()

    def new_file(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """Open a new file for writing; it is visible immediately."""
        return Path(path).open("wb")

    def sync(self, file: IO[bytes]) -> None:
        """Synchronise an open file, so that its data survives a power failure."""
        file.flush()
        os.fsync(file.fileno())

    def replace(self, path: str, new_path: str) -> None:
        """Rename a file atomically, replacing an existing file."""
        Path(path).replace(new_path)

    def link(self, path: str, new_path: str) -> None:
        """Create a hard link atomically, also on NFS; `FileExistsError` if the name exists."""
        os.link(path, new_path)

    def remove(self, path: str) -> None:
        """Remove a file; `FileNotFoundError` if it does not exist."""
        Path(path).unlink()


def _arrow() -> Any:
    """Local file system of pyarrow, imported only when a file is opened."""
    import pyarrow.fs as pafs

    return pafs.LocalFileSystem()


@dataclass(frozen=True)
class Storage:
    """A directory that may be local (`runs/cache`) or remote (`s3://bucket/cache`).

    All access to caches, answers and run directories goes through this class, so that tests can
    simulate storage errors.

    Attributes:
        filesystem: The local disk, or the object store of a URL.
        root: Path inside that file system.
    """

    filesystem: Disk | ObjectStore
    root: str

    @classmethod
    def at(cls, location: str | Place | Storage) -> Storage:
        """Open a path or a URL that fsspec supports; a storage is returned unchanged.

        Raises:
            InputError: If the URL is not supported or contains a password.
            ModuleNotFoundError: If the package for its scheme is not installed.
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
        """The object store; `None` on a local disk."""
        return self.filesystem if isinstance(self.filesystem, ObjectStore) else None

    @property
    def _disk(self) -> Disk:
        """The local disk; only if `store` is `None`."""
        assert isinstance(self.filesystem, Disk)
        return self.filesystem

    @property
    def is_local(self) -> bool:
        """Whether this is a local directory."""
        return self.store is None

    @property
    def location(self) -> str:
        """Path or URL, for `at` and for messages."""
        return self.root if self.store is None else self.store.url(self.root)

    def files(self) -> list[pafs.FileInfo]:
        """Files directly in this directory with size and time, including hidden and empty ones."""
        return [info for info in self._entries() if info.is_file]

    def names(self, suffix: str = "") -> list[str]:
        """Sorted names of the visible, non-empty files directly in this directory."""
        return sorted(
            info.base_name
            for info in self.files()
            if info.size > 0  # a power failure may leave empty files
            and info.base_name.endswith(suffix)
            and not info.base_name.startswith(".")
        )

    def folders(self) -> list[str]:
        """Names of the directories directly in this one, sorted."""
        return sorted(info.base_name for info in self._entries() if not info.is_file)

    def _entries(self) -> list[pafs.FileInfo]:
        """Entries of this directory; empty if it does not exist."""
        if self.store is not None:
            return [_file_info(entry) for entry in self.store.listing(self.root)]
        return self._disk.entries(self.root)

    def is_folder(self) -> bool:
        """Whether the directory exists."""
        if self.store is not None:
            return self.store.is_folder(self.root)
        return self._disk.is_folder(self.root)

    def exists(self, name: str) -> bool:
        """Whether the file `name` exists and is not empty."""
        return self.size(name) > 0

    def size(self, name: str) -> int:
        """Size of the file `name` in bytes; 0 if it does not exist."""
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
        """Write a file atomically: readers see either the old or the new content."""
        if self.store is not None:
            self.store.write(self.path(name), data)
            return
        with self.writing(name) as file:
            file.write(data)

    def create_file(self, name: str, data: bytes) -> None:
        """Create a file atomically; of several callers exactly one succeeds.

        This holds on local disks, on NFS, and on S3 and Google Cloud Storage (conditional PUT). In
        other stores a check precedes the write.

        Args:
            name: Name of the file.
            data: Content; in a store it must be unique to the caller, to tell which one succeeded.

        Raises:
            FileExistsError: If the file exists.
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
        """Open a file for writing; it becomes visible when the block ends without an error."""
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
        """Rename a file in this directory, replacing an existing one."""
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
        """Create this directory; of several callers exactly one succeeds.

        Object stores have no empty directories, so a hidden object is created there.

        Raises:
            FileExistsError: If the directory exists.
            OSError: If it cannot be created.
        """
        if self.is_local:
            self._disk.make_folder(self.root, exist_ok=False)
        elif self.is_folder():
            raise FileExistsError(self.location)
        else:
            self.create_file(".made", uuid.uuid4().hex.encode())

    def remove_if_empty(self) -> None:
        """Remove this directory if it is empty; object stores have no empty directories."""
        if self.is_local:
            with suppress(OSError):  # something is in it
                self._disk.remove_folder(self.root)


def _file_info(entry: Stored) -> pafs.FileInfo:
    """Convert an entry of a store's listing to pyarrow's `FileInfo`."""
    import pyarrow.fs as pafs

    if not entry.is_file:
        return pafs.FileInfo(entry.path, pafs.FileType.Directory)
    return pafs.FileInfo(entry.path, pafs.FileType.File, mtime=entry.modified, size=entry.size)
