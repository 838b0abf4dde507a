"""Files on a local disk or in an object store, written whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urlsplit

# pyarrow is imported when a directory is opened: commands that only name one start without it.
if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs


@dataclass(frozen=True)
class Storage:
    """A directory that may be local (`runs/cache`) or remote (`s3://bucket/cache`).

    Caches, answers and run directories reach files through it alone, so a test can hand them a
    directory that fails.

    Attributes:
        filesystem: The pyarrow file system behind it.
        root: Path inside that file system.
    """

    filesystem: pafs.FileSystem
    root: str

    @classmethod
    def at(cls, location: str | Path | Storage) -> Storage:
        """Open a path or a URL that pyarrow or fsspec understands; a storage is returned as it is.

        Raises:
            ValueError: If nothing installed understands the URL.
        """
        if isinstance(location, Storage):
            return location
        import pyarrow.fs as pafs

        location = str(location)
        if location.startswith("file://"):
            location = unquote(urlsplit(location).path)
        if "://" not in location:
            return cls(pafs.LocalFileSystem(), str(Path(location).absolute()))
        try:
            return cls(*pafs.FileSystem.from_uri(location))
        except (ValueError, OSError) as unknown_to_arrow:
            return cls._through_fsspec(location, unknown_to_arrow)

    @classmethod
    def _through_fsspec(cls, location: str, cause: Exception) -> Storage:
        """Use one of fsspec's file systems."""
        import fsspec
        import pyarrow.fs as pafs

        try:
            # A remembered listing would hide what others have written since.
            filesystem, path = fsspec.core.url_to_fs(location, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise ValueError(f"cannot open {location!r}: {cause}; {error}") from error
        return cls(pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path)

    def child(self, name: str) -> Storage:
        """The directory `name` inside this one."""
        return replace(self, root=self.path(name))

    def path(self, name: str) -> str:
        """Path of the file `name` in this directory."""
        return f"{self.root.rstrip('/')}/{name}"

    @property
    def is_local(self) -> bool:
        """Whether a rename is atomic here; object stores commit an object when its upload ends."""
        return bool(self.filesystem.type_name == "local")

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
        import pyarrow.fs as pafs

        selector = pafs.FileSelector(self.root, allow_not_found=True)
        found: list[pafs.FileInfo] = self.filesystem.get_file_info(selector)
        return found

    def is_folder(self) -> bool:
        """Whether there is anything here to look into."""
        return bool(self.filesystem.get_file_info(self.root).type.name == "Directory")

    def exists(self, name: str) -> bool:
        """Whether the file `name` is there and not empty."""
        info = self.filesystem.get_file_info(self.path(name))
        return bool(info.is_file and info.size > 0)

    def size(self, name: str) -> int:
        """Bytes of the file `name`."""
        return int(self.filesystem.get_file_info(self.path(name)).size)

    def read(self, name: str) -> bytes:
        """All bytes of a file.

        Raises:
            FileNotFoundError: If it is not there.
        """
        with self.opened(name) as file:
            return bytes(file.read())

    def opened(self, name: str) -> pa.NativeFile:
        """A file to read parts of; close it after use.

        Raises:
            FileNotFoundError: If it is not there.
        """
        return self.filesystem.open_input_file(self.path(name))

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Put a file in place atomically: readers see the old state or the new one."""
        with self.writing(name) as file:
            file.write(data)

    def create_file(self, name: str, data: bytes) -> None:
        """Put a new file in place, whole; of several callers exactly one succeeds.

        That holds on local disks and NFS. An object store needs a conditional PUT, which pyarrow
        does not offer: there this looks first and then writes.

        Raises:
            FileExistsError: If it is there.
        """
        if not self.is_local:
            if self.exists(name):
                raise FileExistsError(self.path(name))
            self.write(name, data)
            return
        aside = f".{uuid.uuid4().hex}.tmp"
        self.write(aside, data)
        try:
            os.link(self.path(aside), self.path(name))  # NFS does this in one step, too
        finally:
            self.delete(aside)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file to fill in pieces, put in place when the block ends and not if it fails."""
        self.filesystem.create_dir(self.root, recursive=True)
        if not self.is_local:
            try:
                with self.filesystem.open_output_stream(self.path(name)) as stream:
                    yield stream
            except BaseException:
                # Closing the stream has committed the part that was written.
                with suppress(OSError):
                    self.delete(name)
                raise
            return
        # A leading dot hides the unfinished file from every Parquet reader of the directory.
        aside = Path(self.path(f".{uuid.uuid4().hex}.tmp"))
        try:
            with aside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self.path(name))
        except OSError as error:
            if error.errno is not None and error.filename is None:  # such as a full disk
                error.filename = self.path(name)
            raise
        finally:
            aside.unlink(missing_ok=True)

    def move(self, name: str, new_name: str) -> None:
        """Give a file another name in this directory; one of that name is replaced."""
        self.filesystem.move(self.path(name), self.path(new_name))

    def delete(self, name: str) -> None:
        """Remove a file."""
        self.filesystem.delete_file(self.path(name))

    def create(self) -> None:
        """Make this directory; of several callers exactly one succeeds on a local disk.

        Raises:
            FileExistsError: If it is there.
            OSError: If it cannot be made.
        """
        if self.is_local:
            Path(self.root).mkdir(parents=True)
        elif self.is_folder():
            raise FileExistsError(self.root)
        else:
            self.filesystem.create_dir(self.root, recursive=True)

    def remove_if_empty(self) -> None:
        """Remove this directory if nothing is in it; object stores have no empty directories."""
        if self.is_local:
            with suppress(OSError):  # something is in it
                Path(self.root).rmdir()
