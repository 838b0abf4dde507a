"""One object store as directories of files: calls are repeated, bounded, and named in errors."""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, TypeVar

from pipeline.redaction import redacted
from pipeline.storage.dialects import DIALECTS, Dialect, modified, open_filesystem
from pipeline.storage.retries import PATIENCE, ConflictError, Patience, repeated


class Ranges(io.RawIOBase):
    """An object as a file: every read is one request of its own, repeated if need be.

    Args:
        read_range: First byte and the one behind the last -> the bytes.
        size: Of the object.
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range, self._size, self._at = read_range, size, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Let the next read begin elsewhere."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes, or all that are left."""
        stop = self._size if size is None or size < 0 else min(self._size, self._at + size)
        data = self._read_range(self._at, stop)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        """All bytes that are left."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


T = TypeVar("T")

PARALLEL = 16


@dataclass(frozen=True)
class Stored:
    """One line of a listing.

    Attributes:
        path: Bucket and path.
        is_file: Whether it is an object; otherwise the common beginning of some.
        size: Bytes.
        version: Another one whenever the bytes have changed; "" if the store names none.
        modified: When it was written, by the store's clock; `None` if the store does not say.
    """

    path: str
    is_file: bool
    size: int = 0
    version: str = ""
    modified: datetime | None = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class ObjectStore:
    """A store with one scheme; paths are `bucket/path`.

    A PUT is atomic on all of them: an object is there when the last byte has arrived, or is not.

    Args:
        scheme: `s3`, `gs`, `hf`, `memory` or another one that fsspec knows.
        patience: How often an operation is tried.
    """

    type_name = "object store"

    def __init__(self, scheme: str, patience: Patience = PATIENCE) -> None:
        self.scheme, self.patience = scheme, patience
        self._opening = threading.Lock()

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str, Patience]]:
        """A worker opens connections, and finds credentials, of its own."""
        return ObjectStore, (self.scheme, self.patience)

    def __eq__(self, other: object) -> bool:
        """Stores with one scheme are one store."""
        return isinstance(other, ObjectStore) and self.scheme == other.scheme

    def __hash__(self) -> int:
        """See `__eq__`."""
        return hash(self.scheme)

    @cached_property
    def _dialect(self) -> Dialect:
        with self._opening:
            return DIALECTS.get(self.scheme, Dialect)(open_filesystem(self.scheme))

    def open(self) -> None:
        """Find out whether anything serves the scheme; nothing is asked of the store.

        Raises:
            ModuleNotFoundError: If the package is not installed.
            ValueError: If nothing serves it.
        """
        self._dialect  # noqa: B018  (opened once, by whoever is first)

    @property
    def has_conditions(self) -> bool:
        """Whether `create` and `replace` hold between several writers."""
        return DIALECTS.get(self.scheme, Dialect).has_conditions

    def url(self, path: str) -> str:
        """The URL of a path, for messages."""
        return redacted(f"{self.scheme}://{path}")

    def _do(self, verb: str, path: str, operation: Callable[[Any], T]) -> T:
        """Repeat an operation on the file system."""
        dialect = self._dialect
        return repeated(lambda: operation(dialect.fs), f"{verb} {self.url(path)}", self.patience)

    def _stored(self, info: Any) -> Stored:
        """A line of a listing of fsspec."""
        is_file = info["type"] == "file"
        version = self._dialect.version(info) if is_file else ""
        path = str(info["name"]).strip("/")
        return Stored(path, is_file, int(info.get("size") or 0), version, modified(info))

    def listing(self, path: str) -> list[Stored]:
        """What is directly in a directory: one request for 1,000 names; empty if there is none."""

        def ask(fs: Any) -> list[Any]:
            try:
                return list(fs.ls(path, detail=True))
            except FileNotFoundError:
                return []

        found = (self._stored(info) for info in self._do("list", path, ask))
        # A folder that a web console made is an empty object with the folder's own name.
        return [entry for entry in found if entry.path != path.strip("/")]

    def tree(self, path: str) -> list[Stored]:
        """Every object below a directory, in order: one request for 1,000.

        Folder markers, the empty objects `folder/` that web consoles make, are left out.
        """
        found = self._do("list", path, lambda fs: fs.find(path, detail=True))
        infos = (info for info in found.values() if not str(info["name"]).endswith("/"))
        entries = (self._stored(info) for info in infos)
        return sorted((e for e in entries if e.is_file), key=lambda entry: entry.path)

    def is_folder(self, path: str) -> bool:
        """Whether anything is below a path."""
        return bool(self.listing(path))

    def stat(self, path: str) -> Stored | None:
        """One object; `None` if it is not there."""
        try:
            return self._stored(self._do("look at", path, lambda _: self._dialect.stat(path)))
        except FileNotFoundError:
            return None

    def age_s(self, path: str) -> float | None:
        """See `Dialect.age_s`."""
        return self._do("look at", path, lambda _: self._dialect.age_s(path))

    def read(self, path: str) -> bytes:
        """All bytes of an object.

        Raises:
            FileNotFoundError: If it is not there.
        """
        return self._do("read", path, lambda _: self._dialect.read(path))

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Some bytes of an object."""
        if stop <= start:
            return b""
        return bytes(self._do("read", path, lambda fs: fs.cat_file(path, start=start, end=stop)))

    def read_with_version(self, path: str) -> tuple[bytes, str] | None:
        """An object and its version; `None` if it is not there."""
        while True:
            before = self.stat(path)
            if before is None:
                return None
            try:
                data = self.read(path)
            except FileNotFoundError:
                continue
            after = self.stat(path)
            if after and after.version == before.version:
                return data, after.version

    def opened(self, path: str) -> io.RawIOBase:
        """An object to read parts of.

        Raises:
            FileNotFoundError: If it is not there.
        """
        found = self.stat(path)
        if found is None:
            raise FileNotFoundError(f"{self.url(path)}: it is not there")
        return Ranges(partial(self.read_range, path), found.size)

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Put an object in place."""
        content = bytes(data)
        self._do("write", path, lambda fs: fs.pipe_file(path, content))

    def create(self, path: str, data: bytes) -> str:
        """Put an object in place that must not be there; returns its version.

        If the answer of a PUT is lost, its repetition is refused by its own success: then the
        bytes tell whose object it is. So they must not be those of another writer.

        Raises:
            FileExistsError: If another writer has written it.
        """
        try:
            return self._do("create", path, lambda _: self._dialect.create(path, data))
        except FileExistsError:
            version = self._own(path, data)
            if version is None:
                raise
            return version

    def replace(self, path: str, data: bytes, version: str) -> str:
        """Replace an object that must have this version; returns the new one.

        See `create` for lost answers.

        Raises:
            ConflictError: If another writer was here.
        """
        try:
            return self._do("replace", path, lambda _: self._dialect.replace(path, data, version))
        except (FileExistsError, FileNotFoundError, ConflictError) as error:
            own = self._own(path, data)
            if own is None:
                raise ConflictError(str(error)) from error
            return own

    def _own(self, path: str, data: bytes) -> str | None:
        """The version of an object that holds our bytes; `None` if it holds others."""
        found = self.read_with_version(path)
        return found[1] if found and found[0] == data else None

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        """A file to fill in pieces; it is sent when the block ends, and not if the block fails."""
        with tempfile.NamedTemporaryFile() as file:
            yield file
            file.flush()
            self.upload(Path(file.name), path)

    def upload(self, source: Path, path: str) -> None:
        """Send a local file."""
        self._do("write", path, lambda fs: fs.put_file(str(source), path))

    def download(self, path: str, target: Path) -> None:
        """Fetch an object into a local file, which is whole when this returns.

        Raises:
            FileNotFoundError: If the object is not there.
        """
        found = self.stat(path)
        if found is None:
            raise FileNotFoundError(f"{self.url(path)}: it is not there")

        def fetch(fs: Any) -> None:
            fs.get_file(path, str(target))
            if target.stat().st_size != found.size:
                raise ConnectionError(f"{target.stat().st_size} of {found.size} bytes arrived")

        self._do("fetch", path, fetch)

    def download_all(self, pairs: Sequence[tuple[str, Path]]) -> None:
        """Fetch several objects at once."""
        with ThreadPoolExecutor(PARALLEL) as workers:
            list(workers.map(lambda pair: self.download(*pair), pairs))

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error."""

        def remove(fs: Any) -> None:
            with suppress(FileNotFoundError):  # an earlier try may have removed it
                fs.rm_file(path)

        self._do("delete", path, remove)

    def move(self, path: str, new_path: str) -> None:
        """Give an object another name: a copy, then the removal."""
        self._do("copy", path, lambda fs: fs.cp_file(path, new_path))
        self.delete(path)
