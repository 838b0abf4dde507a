"""Per-node cache of videos downloaded from an object store.

Several processes share one directory. A lock per video (`flock`, released when its process ends) is
held shared by readers and exclusively during a download. So a video is downloaded by only one
process, is not removed while it is decoded, and incomplete downloads are never used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import posixpath
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.storage.objects import ObjectStore, Stored
from pipeline.storage.urls import Url, place
from tango_core.errors import MissingFileError
from tango_core.local_files import has_identity

# Locks are named by digests; two videos may share a lock and then wait for each other.
_LOCK_DIGITS = 3
# Suffixes of an incomplete download, and of a sparse file that reserves its size.
_HALF, _ROOM = ".half", ".room"
_WAITS_S = 600.0
_GIB = 2**30


class ChangedError(OSError):
    """A video has changed since the job was planned."""


@dataclass(frozen=True)
class VideoCache:
    """Directory of downloaded videos with a maximum size, shared by the processes of a node.

    Attributes:
        root: The directory; `~` is expanded on each node.
        max_gib: Maximum size in GiB, including videos that are being downloaded.
    """

    root: str
    max_gib: float

    @property
    def _root(self) -> Path:
        return Path(os.path.expanduser(self.root))

    @contextmanager
    def fetched(self, url: str, fingerprint: str) -> Iterator[str]:
        """Context manager with the path of a local copy of a video or directory of frames.

        Args:
            url: URL of the object or of the directory.
            fingerprint: Expected version: from `remote_fingerprint`, or `source_fingerprint` of
                the bytes; "" for the current version.

        Raises:
            FileNotFoundError: If it does not exist.
            ChangedError: If the store has another version.
            OSError: If it cannot be downloaded, or is larger than the maximum size.
        """
        where = place(url)
        assert isinstance(where, Url)
        store = ObjectStore(where.scheme)
        fingerprint = fingerprint or fingerprint_of(where, _objects(store, where))
        name = hashlib.sha256(f"{where}|{fingerprint}".encode()).hexdigest()[:32]
        path = Path(self._root, name[:2], name + posixpath.splitext(where.name)[1].lower())
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with self._locked(name, fcntl.LOCK_SH):
                if path.exists():
                    os.utime(path)  # mark as recently used; the oldest ones are removed first
                    yield str(path)
                    return
            with self._locked(name, fcntl.LOCK_EX):
                if not path.exists():
                    self._fetch(store, where, fingerprint, path)

    def _fetch(self, store: ObjectStore, where: Url, fingerprint: str, path: Path) -> None:
        """Download a video under a temporary name, check it, and rename it."""
        objects, is_of_listing = _objects(store, where), fingerprint.startswith("store")
        if is_of_listing and fingerprint_of(where, objects) != fingerprint:
            raise ChangedError(changed(where))
        half, room = path.with_name(path.name + _HALF), path.with_name(path.name + _ROOM)
        _remove(half)
        try:
            self._reserve(where, room, sum(entry.size for entry in objects))
            if _is_file(where, objects):
                store.download(objects[0].path, half)
            else:
                pairs = [(o.path, half / o.path[len(where.path) + 1 :]) for o in objects]
                for _, target in pairs:
                    target.parent.mkdir(parents=True, exist_ok=True)
                store.download_all(pairs)
            if fingerprint_of(where, _objects(store, where)) != fingerprint_of(where, objects):
                raise ChangedError(changed(where))
            if not is_of_listing and not has_identity(half, fingerprint, True):
                raise ChangedError(changed(where))
            os.utime(half)
            half.rename(path)
        finally:
            _remove(half)
            _remove(room)

    def _reserve(self, where: Url, room: Path, size: int) -> None:
        """Free disk space for a video and reserve it."""
        if size > self.max_gib * _GIB:
            raise OSError(
                f"{where} has {size / _GIB:.2f} GiB, more than the maximum size of a node's video "
                f"cache ({self.max_gib:g} GiB); raise --video-cache-gib (decode.video_cache_gib)"
            )
        until = time.monotonic() + _WAITS_S
        while True:
            with self._locked("room", fcntl.LOCK_EX):
                if self._make_room(size):
                    with room.open("wb") as file:
                        file.truncate(size)
                    return
            if time.monotonic() > until:
                raise OSError(
                    f"{where}: this node's video cache of {self.max_gib:g} GiB is full and all "
                    "its videos are in use; raise --video-cache-gib (decode.video_cache_gib)"
                )
            time.sleep(0.2)

    def _make_room(self, size: int) -> bool:
        """Remove unused videos, the least recently used first, until `size` bytes are free."""
        entries = []
        for path in self._root.glob("??/*"):
            with suppress(FileNotFoundError):  # another process has put it in place
                bytes_ = 0 if path.suffix == _HALF else _size(path)
                entries.append((path.stat().st_mtime_ns, bytes_, path))
        surplus = sum(entry[1] for entry in entries) + size - self.max_gib * _GIB
        for _, freed, path in sorted(entries):
            if surplus <= 0:
                break
            name = path.name.partition(".")[0]
            with self._locked(name, fcntl.LOCK_EX | fcntl.LOCK_NB) as free:
                if free:
                    _remove(path)
                    surplus -= freed
        return surplus <= 0

    @contextmanager
    def _locked(self, name: str, how: int) -> Iterator[bool]:
        """Hold a lock during the block; yields `False` if it is taken and must not be awaited."""
        folder = self._root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / name[:_LOCK_DIGITS]).open("ab") as file:
            try:
                fcntl.flock(file, how)
            except BlockingIOError:
                yield False
                return
            yield True


def remote_fingerprint(url: str) -> str:
    """Fingerprint of the current version of a video or frame directory in an object store.

    Raises:
        FileNotFoundError: If it does not exist.
    """
    where = place(url)
    assert isinstance(where, Url)
    return fingerprint_of(where, _objects(ObjectStore(where.scheme), where))


def fingerprint_of(where: Url, objects: list[Stored]) -> str:
    """Fingerprint of a URL from a listing of its objects: their names, sizes and versions."""
    about = hashlib.sha256(str(where).encode()).hexdigest()[:16]
    if _is_file(where, objects):
        return f"store:{objects[0].size}:{objects[0].version}:{about}"
    inside = "\n".join(f"{o.path[len(where.path) + 1 :]}={o.size}:{o.version}" for o in objects)
    return f"store-frames:{hashlib.sha256(inside.encode()).hexdigest()[:32]}:{about}"


def _objects(store: ObjectStore, where: Url) -> list[Stored]:
    """The object at a URL, or the objects in a directory."""
    found = store.stat(where.path)
    objects = [found] if found else store.tree(where.path)
    if not objects:
        raise MissingFileError(f"{where}: nothing is there")
    return objects


def _is_file(where: Url, objects: list[Stored]) -> bool:
    """Whether a URL is a single object."""
    return len(objects) == 1 and objects[0].path == where.path


def changed(where: Url | str) -> str:
    """Message of a `ChangedError`."""
    return f"{where} has been replaced since the job was planned; --resume plans it again"


def _size(path: Path) -> int:
    """Size of a file, or of all files in a directory, in bytes."""
    if path.is_dir():
        return sum(child.stat().st_size for child in path.rglob("*") if child.is_file())
    return path.stat().st_size


def _remove(path: Path) -> None:
    """Remove a file or a directory; no error if it does not exist."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
