"""Access to object stores through fsspec; errors of stores and disks, and waiting for their end.

The fsspec file systems are opened with timeouts and without their own retries; only `repeated`
retries requests. Credentials come from the usual sources of each store.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pipeline.errors import StoreError
from pipeline.redaction import redacted
from pipeline.runtime import stopping
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from tango_core.errors import InputError, MissingFileError

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)
T = TypeVar("T")

CONNECT_S, READ_S = 10.0, 30.0
PARALLEL = 16
CONDITIONAL = frozenset({"s3", "gs", "memory"})
"""Schemes with conditional writes: if several writers create an object, exactly one succeeds."""

# fsspec protocol -> required package; `jobs/extras.py` maps packages to extras.
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}
# Keys of a listing that may hold an object's version, and the time of its last change.
_VERSIONS = ("ETag", "generation", "blob_id", "etag", "md5Hash", "content_md5")
_TIMES = ("LastModified", "mtime", "last_modified", "created", "timeCreated")

# Errors for which retrying does not help, and libraries that raise others for broken responses.
_WRONG_PATH = (IsADirectoryError, NotADirectoryError)
_WRONG_NUMBERS = frozenset({errno.EINVAL, errno.ENAMETOOLONG, errno.EMSGSIZE, errno.ENOSYS})
_LIBRARIES = frozenset({"aiohttp", "botocore", "http", "requests"})
# Names of the errors of botocore and google.auth for missing or expired credentials.
_NO_CREDENTIALS = re.compile("Credentials|ProfileNotFound|RefreshError|Token")


class UnavailableError(ConnectionError):
    """A request to a store failed in all attempts, or was not answered in time."""


@dataclass(frozen=True)
class Patience:
    """Retry policy of requests.

    Attributes:
        tries: Maximum number of attempts.
        first_s: Mean pause after the first attempt; it doubles after every further one.
        longest_s: Maximum pause.
        deadline_s: No attempt starts later than this after the first one.
    """

    tries: int = 6
    first_s: float = 0.25
    longest_s: float = 8.0
    deadline_s: float = 120.0


PATIENCE = Patience()


def repeated(operation: Callable[[], T], what: str, patience: Patience = PATIENCE) -> T:
    """Call an operation until it succeeds, its error is final, or no attempts are left.

    Args:
        operation: Idempotent function: it reads, or writes the same bytes.
        what: Verb and URL for the error message: `"read s3://bucket/x"`.
        patience: Retry policy.

    Raises:
        OSError: FileNotFoundError, FileExistsError or PermissionError for final errors, else
            `UnavailableError`. The message contains the URL without secrets.
    """
    started = time.monotonic()
    for attempt in range(1, patience.tries + 1):
        try:
            return operation()
        except Exception as error:
            final = _final(error, redacted(what))
            late = time.monotonic() - started > patience.deadline_s
            if final is None and (attempt == patience.tries or late):
                tried = f"tried {attempt} times without success ({_reason(error)})"
                final = UnavailableError(f"{redacted(what)}: {tried}")
            if final is not None:
                raise final from error
            logger.debug("try %d to %s: %s", attempt, redacted(what), type(error).__name__)
            # Full jitter, so that workers that failed together do not retry together.
            time.sleep(random.uniform(0, min(patience.first_s * 2**attempt, patience.longest_s)))
    raise AssertionError("unreachable")


def _final(error: Exception, what: str) -> Exception | None:
    """The error to raise if retrying does not help, in one line with the URL; else `None`."""
    if isinstance(error, ModuleNotFoundError | NotImplementedError):
        return error
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{what}: it is not there ({_reason(error)})")
    if _is_conflict(error):
        return FileExistsError(f"{what}: it has been written by another program ({_reason(error)})")
    if isinstance(error, PermissionError) or _NO_CREDENTIALS.search(type(error).__name__):
        end = "check the credentials of this process"
        return PermissionError(f"{what}: refused ({_reason(error)}); {end}")
    if isinstance(error, OSError):
        is_wrong = isinstance(error, _WRONG_PATH) or error.errno in _WRONG_NUMBERS
    else:
        is_broken_answer = type(error).__module__.partition(".")[0] in _LIBRARIES
        is_wrong = isinstance(error, ValueError | TypeError | KeyError) and not is_broken_answer
    return OSError(f"{what}: {_reason(error)}") if is_wrong else None


def _reason(error: Exception) -> str:
    return redacted(" ".join(str(error).split())) or type(error).__name__


def _is_conflict(error: BaseException | None) -> bool:
    """Whether a store refused to create an object because it exists."""
    while error is not None:
        response = getattr(error, "response", None)
        code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
        if isinstance(error, FileExistsError) or code in ("412", "PreconditionFailed"):
            return True
        error = error.__cause__
    return False


def open_filesystem(scheme: str) -> Any:
    """Open the fsspec file system of a scheme without any request.

    Raises:
        ModuleNotFoundError: If the required package, `error.name`, is not installed.
        InputError: If the scheme is not supported.
    """
    import fsspec

    # Disable cached listings, which would hide later writes of other processes.
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "s3":
        options["config_kwargs"] = {
            "connect_timeout": CONNECT_S,
            "read_timeout": READ_S,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "max_pool_connections": 32,
        }
    if scheme == "gs":
        options["timeout"] = READ_S
    try:
        opened = fsspec.filesystem(scheme, **options)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{scheme}:// cannot be opened: {redacted(str(error))}",
            name=_PACKAGES.get(scheme, error.name),
        ) from error
    except ValueError as error:
        raise InputError(
            f"{redacted(str(error))}; use a local path, s3://, gs:// or hf://"
        ) from error
    if scheme == "s3":
        opened.retries = 1
    return opened


class Ranges(io.RawIOBase):
    """Read-only file over an object; every read is a separate request with retries.

    Args:
        read_range: Function that returns the bytes of a range (start, stop).
        size: Size of the object.
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range, self._size, self._at = read_range, size, 0

    def readable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read up to `size` bytes, or all remaining ones."""
        stop = self._size if size is None or size < 0 else min(self._size, self._at + size)
        data = self._read_range(self._at, stop)
        self._at += len(data)
        return data


@dataclass(frozen=True)
class Stored:
    """Entry of a listing.

    Attributes:
        path: Bucket and path.
        is_file: Whether it is an object; otherwise it is a common prefix of objects.
        size: Bytes.
        version: Version id that changes whenever the bytes change; "" if the store has none.
        modified: Time of the last write by the store's clock; `None` if unknown.
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


@dataclass(unsafe_hash=True)
class ObjectStore:
    """Object store of one URL scheme; paths are `bucket/path`.

    A PUT is atomic in all stores: an object becomes visible when its upload is complete.

    Attributes:
        scheme: `s3`, `gs`, `hf`, `memory` or another one that fsspec supports.
        patience: Retry policy of all operations.
    """

    scheme: str
    patience: Patience = PATIENCE

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str, Patience]]:
        """Pickle only the settings: every worker opens its own connections and credentials."""
        return ObjectStore, (self.scheme, self.patience)

    @cached_property
    def fs(self) -> Any:
        """The fsspec file system, opened once; for the errors see `open_filesystem`."""
        return open_filesystem(self.scheme)

    @property
    def has_conditions(self) -> bool:
        """Whether `create` is atomic between several writers."""
        return self.scheme in CONDITIONAL

    def url(self, path: str) -> str:
        """URL of a path with secrets redacted, for messages."""
        return redacted(f"{self.scheme}://{path}")

    def _do(self, verb: str, path: str, operation: Callable[[Any], T]) -> T:
        """Call an operation on the file system with retries."""
        return repeated(partial(operation, self.fs), f"{verb} {self.url(path)}", self.patience)

    def _stored(self, info: Any) -> Stored:
        """Convert an entry of an fsspec listing."""
        times = (info[key] for key in _TIMES if isinstance(info.get(key), datetime))
        modified = next((one if one.tzinfo else one.replace(tzinfo=UTC) for one in times), None)
        versions = (str(info[key]).strip('"') for key in _VERSIONS if info.get(key))
        version = next(versions, modified.isoformat() if modified else "")
        path, is_file = str(info["name"]).strip("/"), info["type"] == "file"
        return Stored(path, is_file, int(info.get("size") or 0), version, modified)

    def listing(self, path: str) -> list[Stored]:
        """Entries directly in a directory (one request per 1,000); empty if it does not exist."""

        def ask(fs: Any) -> list[Any]:
            try:
                return list(fs.ls(path, detail=True))
            except FileNotFoundError:
                return []

        found = (self._stored(info) for info in self._do("list", path, ask))
        # Skip folder markers of web consoles: empty objects with the name of the folder.
        return [entry for entry in found if entry.path != path.strip("/")]

    def tree(self, path: str) -> list[Stored]:
        """All objects below a directory, sorted (one request per 1,000).

        Folder markers, the empty objects `folder/` created by web consoles, are left out.
        """
        found = self._do("list", path, lambda fs: fs.find(path, detail=True))
        infos = (info for info in found.values() if not str(info["name"]).endswith("/"))
        entries = (self._stored(info) for info in infos)
        return sorted((e for e in entries if e.is_file), key=lambda entry: entry.path)

    def is_folder(self, path: str) -> bool:
        """Whether any object is below a path."""
        return bool(self.listing(path))

    def stat(self, path: str) -> Stored | None:
        """Entry of one object; `None` if it does not exist."""
        try:
            found = self._stored(self._do("look at", path, lambda fs: fs.info(path)))
        except FileNotFoundError:
            return None
        return found if found.is_file else None

    def size(self, path: str) -> int:
        """Size of an object in bytes; 0 if it does not exist."""
        found = self.stat(path)
        return found.size if found else 0

    def age_s(self, path: str) -> float | None:
        """Seconds since an object was written, by the store's clock; `None` if unknown."""
        return self._do("look at", path, lambda fs: _age_s(fs, self.scheme, path))

    def read(self, path: str) -> bytes:
        """All bytes of an object.

        Raises:
            FileNotFoundError: If it is not there.
        """
        # Read in one request; by default s3fs requests the size first.
        options = {"max_concurrency": 1} if self.scheme == "s3" else {}
        return bytes(self._do("read", path, lambda fs: fs.cat_file(path, **options)))

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Some bytes of an object."""
        if stop <= start:
            return b""
        return bytes(self._do("read", path, lambda fs: fs.cat_file(path, start=start, end=stop)))

    def opened(self, path: str) -> pa.NativeFile:
        """Open an object for random access.

        Raises:
            FileNotFoundError: If it does not exist.
        """
        import pyarrow as pa

        ranges = Ranges(partial(self.read_range, path), self._existing(path).size)
        return pa.PythonFile(ranges, mode="r")

    def _existing(self, path: str) -> Stored:
        found = self.stat(path)
        if found is None:
            raise MissingFileError(f"{self.url(path)}: it is not there")
        return found

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write an object."""
        content = bytes(data)
        self._do("write", path, lambda fs: fs.pipe_file(path, content))

    def create(self, path: str, data: bytes) -> None:
        """Create an object that must not exist.

        If the response to a PUT is lost, the retry is refused because the first PUT succeeded; the
        object's bytes then show who wrote it. Therefore `data` must be unique to the writer.

        Raises:
            FileExistsError: If another writer has created it.
        """
        try:
            self._do("create", path, lambda fs: fs.pipe_file(path, data, mode="create"))
        except FileExistsError:
            if self.read(path) != data:
                raise

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file for writing; it is uploaded when the block ends without an error."""
        with tempfile.NamedTemporaryFile() as file:
            yield file
            file.flush()
            self.upload(Path(file.name), path)

    def upload(self, source: Path, path: str) -> None:
        """Upload a local file."""
        self._do("write", path, lambda fs: fs.put_file(str(source), path))

    def download(self, path: str, target: Path) -> None:
        """Download an object into a local file and check its size.

        Raises:
            FileNotFoundError: If the object is not there.
        """
        size = self._existing(path).size
        target.parent.mkdir(parents=True, exist_ok=True)

        def fetch(fs: Any) -> None:
            fs.get_file(path, str(target))
            if target.stat().st_size != size:
                raise ConnectionError(f"{target.stat().st_size} of {size} bytes arrived")

        self._do("fetch", path, fetch)

    def download_all(self, pairs: Sequence[tuple[str, Path]]) -> None:
        """Download several objects in parallel."""
        with ThreadPoolExecutor(PARALLEL) as workers:
            list(workers.map(lambda pair: self.download(*pair), pairs))

    def delete(self, path: str) -> None:
        """Remove an object; no error if it does not exist."""

        def remove(fs: Any) -> None:
            with suppress(FileNotFoundError):  # an earlier try may have removed it
                fs.rm_file(path)

        self._do("delete", path, remove)

    def move(self, path: str, new_path: str) -> None:
        """Rename an object by copying and removing it."""
        self._do("copy", path, lambda fs: fs.cp_file(path, new_path))
        self.delete(path)


def _age_s(fs: Any, scheme: str, path: str) -> float | None:
    """Seconds since an object was written, with both times from one response of the store."""
    bucket, _, key = path.partition("/")
    if scheme == "s3":
        out = fs.call_s3("head_object", Bucket=bucket, Key=key)
        date = out.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        written = out.get("LastModified")
    elif scheme == "gs":
        headers, content = fs.call("GET", f"b/{quote(bucket)}/o/{quote(key, safe='')}")
        date, written = headers.get("Date"), json.loads(content).get("updated")
        written = datetime.fromisoformat(written) if written else None
    else:
        return None
    known = date and written
    return float((parsedate_to_datetime(date) - written).total_seconds()) if known else None


PAUSES_S = (5.0, 15.0, 40.0)
"""Pauses between attempts in seconds; after a success they start from the first one."""

NOT_BACK = f"it did not come back within {sum(PAUSES_S):g} s of waiting"

# Errors of a full or read-only disk, then of a disk or server that is unavailable.
_ERRNOS = frozenset(
    getattr(errno, name, errno.EIO)  # some systems lack some of them
    for name in (
        *("ENOSPC", "EDQUOT", "EROFS", "EFBIG"),
        *("EIO", "ENXIO", "ENODEV", "ESTALE", "EREMOTEIO", "ENOTCONN", "ESHUTDOWN", "EHOSTDOWN"),
        *("ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EPIPE", "ETIMEDOUT"),
        *("ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTUNREACH"),
    )
)


def store_fault(error: BaseException, where: str) -> str | None:
    """One-line description of a storage error with its path; `None` for other errors.

    Args:
        error: Error from reading or writing a file; its causes are checked as well.
        where: Path or URL that was read or written, for errors that do not name one.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or current.__context__
    if not any(
        isinstance(one, (StoreError, UnavailableError))
        or (isinstance(one, OSError) and one.errno in _ERRNOS)
        for one in seen
    ):
        return None
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:1000] if where in text else f"{where}: {text}"[:1000]


def insist(write: Callable[[], T], where: str, clock: Clock = SYSTEM_CLOCK) -> T:
    """Call `write` until it succeeds, with pauses after storage errors; signals end a pause.

    Raises:
        StoreError: If the store is still unavailable after all pauses.
    """
    for attempt in range(len(PAUSES_S) + 1):
        try:
            return write()
        except Exception as error:
            fault = store_fault(error, where)
            if fault is None:
                raise
            if attempt == len(PAUSES_S):
                raise StoreError(f"{fault}; {NOT_BACK}") from error
        with stopping.interruptible():
            pause(fault, attempt, clock)
    raise AssertionError


def pause(fault: str, attempt: int, clock: Clock) -> None:
    """Log a storage error and wait."""
    seconds, number = PAUSES_S[attempt], f"{attempt + 1} of {len(PAUSES_S)}"
    logger.warning("storage error (%s); retrying in %g s (%s)", fault, seconds, number)
    clock.sleep(seconds)
