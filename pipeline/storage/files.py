"""Files on a local disk or in an object store, written atomically."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pipeline.storage.objects import ObjectStore, Stored
from pipeline.storage.urls import Place, Url, place
from tango_core.errors import InputError

if TYPE_CHECKING:  # imported only when a file is opened, because the import is slow
    import pyarrow as pa


@dataclass(frozen=True)
class Disk:
    """The local disk with the methods of `ObjectStore`; all paths are absolute.

    The first methods are single operations that raise the operating system's errors. Tests replace
    them to simulate crashes, errors and lost unsynchronised data between any two operations.
    """

    def listing(self, path: str) -> list[Stored]:
        """Entries of a directory; empty if it does not exist."""
        found = []
        with suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed meanwhile
                    status = entry.stat()
                    time = datetime.fromtimestamp(status.st_mtime, UTC)
                    size = status.st_size
                    found.append(Stored(entry.path, not entry.is_dir(), size, modified=time))
        return found

    def is_folder(self, path: str) -> bool:
        """Whether a directory exists."""
        return Path(path).is_dir()

    def size(self, path: str) -> int:
        """Size of a file in bytes; 0 if it does not exist."""
        file = Path(path)
        return file.stat().st_size if file.is_file() else 0

    def opened(self, path: str) -> pa.NativeFile:
        """Open a file for random access."""
        import pyarrow as pa

        return pa.OSFile(path)

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

    def move(self, path: str, new_path: str) -> None:
        """Rename a file atomically, replacing an existing file."""
        Path(path).replace(new_path)

    def link(self, path: str, new_path: str) -> None:
        """Create a hard link atomically, also on NFS; `FileExistsError` if the name exists."""
        os.link(path, new_path)

    def delete(self, path: str) -> None:
        """Remove a file; `FileNotFoundError` if it does not exist."""
        Path(path).unlink()

    def url(self, path: str) -> str:
        """Name of a path in messages: the path itself, as a local disk has no URLs."""
        return path

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        with self.opened(path) as file:
            return bytes(file.read())

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write a file atomically."""
        with self.writing(path) as file:
            file.write(data)

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file for writing; it becomes visible when the block ends without an error."""
        folder = path.rpartition("/")[0]
        self.make_folder(folder, exist_ok=True)
        # A leading dot hides the unfinished file from every Parquet reader of the directory.
        aside = f"{folder}/.{uuid.uuid4().hex}.tmp"
        try:
            with self.new_file(aside) as file:
                yield file
                self.sync(file)
            self.move(aside, path)
        except OSError as error:
            if error.errno is not None and error.filename is None:  # such as a full disk
                error.filename = path
            raise
        finally:
            with suppress(FileNotFoundError):
                self.delete(aside)

    def create(self, path: str, data: bytes) -> None:
        """Create a file atomically; `FileExistsError` if it exists."""
        aside = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp"
        self.write(aside, data)
        try:
            self.link(aside, path)
        finally:
            self.delete(aside)


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
                store.fs  # noqa: B018  (opened now, so that an unknown scheme is refused)
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
    def location(self) -> str:
        """Path or URL, for `at` and for messages."""
        return self.filesystem.url(self.root)

    def files(self) -> list[Stored]:
        """Files directly in this directory, including hidden and empty ones."""
        return [entry for entry in self.filesystem.listing(self.root) if entry.is_file]

    def names(self, suffix: str = "") -> list[str]:
        """Sorted names of the visible, non-empty files directly in this directory."""
        return sorted(
            file.name
            for file in self.files()
            if file.size > 0  # a power failure may leave empty files
            and file.name.endswith(suffix)
            and not file.name.startswith(".")
        )

    def folders(self) -> list[str]:
        """Names of the directories directly in this one, sorted."""
        return sorted(e.name for e in self.filesystem.listing(self.root) if not e.is_file)

    def is_folder(self) -> bool:
        """Whether the directory exists."""
        return self.filesystem.is_folder(self.root)

    def exists(self, name: str) -> bool:
        """Whether the file `name` exists and is not empty."""
        return self.size(name) > 0

    def size(self, name: str) -> int:
        """Size of the file `name` in bytes; 0 if it does not exist."""
        return self.filesystem.size(self.path(name))

    def read(self, name: str) -> bytes:
        """All bytes of a file.

        Raises:
            FileNotFoundError: If it does not exist.
        """
        return self.filesystem.read(self.path(name))

    def opened(self, name: str) -> pa.NativeFile:
        """Open a file for random access; the caller closes it.

        Raises:
            FileNotFoundError: If it does not exist.
        """
        return self.filesystem.opened(self.path(name))

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a file atomically: readers see either the old or the new content."""
        self.filesystem.write(self.path(name), data)

    def writing(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file for writing; it becomes visible when the block ends without an error."""
        return self.filesystem.writing(self.path(name))

    def create_file(self, name: str, data: bytes) -> None:
        """Create a file atomically; of several callers exactly one succeeds.

        This holds on local disks, on NFS, and on S3 and Google Cloud Storage (conditional PUT). In
        other stores a check precedes the write.

        Args:
            name: Name of the file.
            data: Content. In an object store it must be unique to the caller: after a lost response
                the stored bytes show whether this caller's request succeeded.

        Raises:
            FileExistsError: If the file exists.
        """
        self.filesystem.create(self.path(name), data)

    def move(self, name: str, new_name: str) -> None:
        """Rename a file in this directory, replacing an existing one."""
        self.filesystem.move(self.path(name), self.path(new_name))

    def delete(self, name: str) -> None:
        """Remove a file."""
        self.filesystem.delete(self.path(name))

    def create(self) -> None:
        """Create this directory; of several callers exactly one succeeds.

        Object stores have no empty directories, so a hidden object is created there.

        Raises:
            FileExistsError: If the directory exists.
            OSError: If it cannot be created.
        """
        if isinstance(self.filesystem, Disk):
            self.filesystem.make_folder(self.root, exist_ok=False)
        elif self.is_folder():
            raise FileExistsError(self.location)
        else:
            self.create_file(".made", uuid.uuid4().hex.encode())

    def remove_if_empty(self) -> None:
        """Remove this directory if it is empty; object stores have no empty directories."""
        if isinstance(self.filesystem, Disk):
            with suppress(OSError):  # it is not empty
                self.filesystem.remove_folder(self.root)
