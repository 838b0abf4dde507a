"""fsspec's file systems with bounded waits, and what stores say each in their own way.

That is: versions of objects, conditional PUTs, the time. Credentials come from the usual chains.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, ClassVar

from pipeline.redaction import redacted
from pipeline.storage.retries import ConflictError

CONNECT_S, READ_S = 10.0, 30.0

# fsspec protocol -> the package that serves it; `jobs/extras.py` knows whose extra it is.
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}


def open_filesystem(scheme: str) -> Any:
    """The file system of a scheme; nothing is asked of the store yet.

    No credentials pass through here: the libraries find them in the environment of the process
    that uses them, so none is pickled on its way to a worker.

    Raises:
        ModuleNotFoundError: If the package is not installed; its `name` says which.
        ValueError: If nothing serves the scheme.
    """
    _raise_if_not_installed(scheme)
    import fsspec

    try:
        opened = fsspec.filesystem(scheme, **_options(scheme))
        if scheme == "s3":
            opened.retries = 1
        return opened
    except ImportError as error:
        package = _PACKAGES.get(scheme) or getattr(error, "name", None)
        raise ModuleNotFoundError(
            f"{scheme}:// cannot be opened: {redacted(str(error))}", name=package
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{redacted(str(error))}; use a local path, s3://, gs:// or hf://"
        ) from error


@cache
def _raise_if_not_installed(scheme: str) -> None:
    """Look for the package without importing it."""
    from importlib.util import find_spec

    package = _PACKAGES.get(scheme)
    if package and find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _options(scheme: str) -> dict[str, Any]:
    """One try per request, because `retries.py` repeats it; no remembered listings."""
    # A remembered listing would hide what others have written since.
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
    return options


# Which of these keys of a listing names the version of an object; the first one that is there.
_VERSIONS = ("ETag", "generation", "blob_id", "etag", "md5Hash", "content_md5")
_TIMES = ("LastModified", "mtime", "last_modified", "created", "timeCreated")


class Dialect:
    """A store about which nothing more is known than that fsspec reads and writes it.

    Args:
        filesystem: fsspec's.
    """

    has_conditions: ClassVar[bool] = False

    def __init__(self, filesystem: Any) -> None:
        self.fs = filesystem

    def stat(self, path: str) -> Mapping[str, Any]:
        """What is known of one object.

        Raises:
            FileNotFoundError: If there is no such object.
        """
        info: Mapping[str, Any] = self.fs.info(path)
        if info["type"] != "file":
            raise FileNotFoundError(path)
        return info

    def version(self, info: Mapping[str, Any]) -> str:
        """Of an object as a listing shows it: another one whenever its bytes have changed."""
        for key in _VERSIONS:
            if info.get(key):
                return str(info[key]).strip('"')
        time = modified(info)
        return time.isoformat() if time else ""

    def read(self, path: str) -> bytes:
        """All bytes of an object."""
        return bytes(self.fs.cat_file(path))

    def create(self, path: str, data: bytes) -> str:
        """Write an object that must not be there; returns its version, "" if unknown.

        Raises:
            FileExistsError: If it is.
        """
        self.fs.pipe_file(path, data, mode="create")
        return ""

    def replace(self, path: str, data: bytes, version: str) -> str:
        """Write an object that must have this version; returns the new one, "" if unknown.

        Raises:
            ConflictError: If it has another one, or is not there.
        """
        raise NotImplementedError(
            "the store has no conditional writes that this version of tango-video knows; put runs "
            "on s3://, gs:// or a shared disk"
        )

    def age_s(self, path: str) -> float | None:
        """Seconds since an object was written, by the store's clock; `None` if it tells none."""
        return None


class S3(Dialect):
    """Amazon S3 and what speaks like it: `If-None-Match: *` and `If-Match: <ETag>`."""

    has_conditions = True

    def stat(self, path: str) -> Mapping[str, Any]:
        """See `Dialect`; one request, where fsspec also lists what is not there."""
        bucket, _, key = path.partition("/")
        if not key:
            raise FileNotFoundError(path)
        out = self.fs.call_s3("head_object", Bucket=bucket, Key=key)
        return {
            "name": path,
            "type": "file",
            "size": out["ContentLength"],
            "ETag": out.get("ETag", ""),
            "LastModified": out.get("LastModified"),
        }

    def read(self, path: str) -> bytes:
        """See `Dialect`; in one request, where fsspec asks for the size first."""
        return bytes(self.fs.cat_file(path, max_concurrency=1))

    def create(self, path: str, data: bytes) -> str:
        """See `Dialect`."""
        return self._put(path, data, IfNoneMatch="*")

    def replace(self, path: str, data: bytes, version: str) -> str:
        """See `Dialect`."""
        return self._put(path, data, IfMatch=f'"{version}"')

    def age_s(self, path: str) -> float | None:
        """See `Dialect`."""
        bucket, _, key = path.partition("/")
        out = self.fs.call_s3("head_object", Bucket=bucket, Key=key)
        date = out.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if not date or "LastModified" not in out:
            return None
        return float((parsedate_to_datetime(date) - out["LastModified"]).total_seconds())

    def _put(self, path: str, data: bytes, **condition: str) -> str:
        """One conditional PUT."""
        bucket, _, key = path.partition("/")
        out = self.fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data, **condition)
        return str(out.get("ETag", "")).strip('"')


class Gcs(Dialect):
    """Google Cloud Storage: `ifGenerationMatch`, 0 for an object that must not be there."""

    has_conditions = True

    def create(self, path: str, data: bytes) -> str:
        """See `Dialect`."""
        return self._put(path, data, "0")

    def replace(self, path: str, data: bytes, version: str) -> str:
        """See `Dialect`."""
        return self._put(path, data, version)

    def age_s(self, path: str) -> float | None:
        """See `Dialect`."""
        from urllib.parse import quote

        bucket, _, key = path.partition("/")
        headers, content = self.fs.call("GET", f"b/{quote(bucket)}/o/{quote(key, safe='')}")
        date, written = headers.get("Date"), json.loads(content).get("updated")
        if not date or not written:
            return None
        return (parsedate_to_datetime(date) - datetime.fromisoformat(written)).total_seconds()

    def _put(self, path: str, data: bytes, generation: str) -> str:
        """One conditional upload in one request."""
        from urllib.parse import quote

        bucket, _, key = path.partition("/")
        found = self.fs.call(
            "POST",
            f"{self.fs._location}/upload/storage/v1/b/{quote(bucket)}/o",
            uploadType="media",
            name=key,
            ifGenerationMatch=generation,
            headers={"Content-Type": "application/octet-stream"},
            data=data,
            json_out=True,
        )
        return str(found.get("generation", ""))


class Memory(Dialect):
    """fsspec's store inside one process, for tests and notebooks."""

    has_conditions = True
    _one_at_a_time: ClassVar[threading.Lock] = threading.Lock()

    def version(self, info: Mapping[str, Any]) -> str:
        """See `Dialect`; times repeat here, so it is a digest of the bytes."""
        if info["type"] != "file":
            return ""
        return hashlib.md5(self.fs.cat_file(info["name"]), usedforsecurity=False).hexdigest()

    def create(self, path: str, data: bytes) -> str:
        """See `Dialect`."""
        with self._one_at_a_time:
            if self.fs.exists(path):
                raise FileExistsError(path)
            self.fs.pipe_file(path, bytes(data))
            return self.version(self.fs.info(path))

    def replace(self, path: str, data: bytes, version: str) -> str:
        """See `Dialect`."""
        with self._one_at_a_time:
            if not self.fs.exists(path) or self.version(self.fs.info(path)) != version:
                raise ConflictError(f"{path} has another version")
            self.fs.pipe_file(path, bytes(data))
            return self.version(self.fs.info(path))


DIALECTS: dict[str, type[Dialect]] = {"s3": S3, "gs": Gcs, "memory": Memory}


def modified(info: Mapping[str, Any]) -> datetime | None:
    """When an object was written, with its time zone; `None` if the listing does not say."""
    for key in _TIMES:
        time = info.get(key)
        if isinstance(time, datetime):
            return time if time.tzinfo else time.replace(tzinfo=UTC)
    return None
