"""Local copies of directories and videos in an object store.

`local_copy` copies a run, and uploads changed files again. `mirrored` copies the annotations of a
benchmark, which reads its files from a disk: annotation files are downloaded, all other files are
empty. The local path that a benchmark returns for a video is translated back into the object's URL.

`VideoCache` keeps the videos that a node has downloaded. Several processes share one directory. A
lock per video (`flock`, released when its process ends) is held shared by readers and exclusively
during a download. So a video is downloaded by only one process, is not removed while it is decoded,
and incomplete downloads are never used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import posixpath
import shutil
import tempfile
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.storage.objects import ObjectStore, Stored
from pipeline.storage.urls import Place, Url, place
from tango_core.errors import MissingFileError
from tango_core.local_files import has_identity

_HOME_FILE = ".home"
# Locks are named by digests; two videos may share a lock and then wait for each other.
_LOCK_DIGITS = 3
# Suffixes of an incomplete download, and of a sparse file that reserves its size.
_HALF, _ROOM = ".half", ".room"
_WAITS_S = 600.0
_GIB = 2**30


@contextmanager
def local_copy(
    where: Place,
    wanted: Callable[[str], bool] = lambda name: True,
    sent: Callable[[str], bool] = lambda name: True,
) -> Iterator[Path]:
    """Context manager with a local copy of a directory, which has the same name.

    If the block ends without an error, new and changed files are uploaded; nothing is removed. A
    local directory is used directly.

    Args:
        where: A path or a URL; the directory need not exist.
        wanted: Selects the files to download, by their relative path.
        sent: Selects the files that may be uploaded.

    Raises:
        OSError: If the store does not respond.
    """
    if isinstance(where, Path):
        yield where
        return
    store = ObjectStore(where.scheme)
    with tempfile.TemporaryDirectory(prefix="tango-", ignore_cleanup_errors=True) as above:
        folder = Path(above, where.name)
        folder.mkdir()
        (folder / _HOME_FILE).write_text(f"{where}\n")
        names = (entry.path[len(where.path) + 1 :] for entry in store.tree(where.path))
        # Names that begin with a dot are internal files, such as leases.
        copied = (name for name in names if name and not name.startswith(".") and wanted(name))
        store.download_all([((where / name).path, folder / name) for name in copied])
        before = _states(folder)
        yield folder
        for path, state in _states(folder).items():
            name = path.relative_to(folder).as_posix()
            if before.get(path) != state and sent(name):
                store.upload(path, (where / name).path)


def home_of(folder: Path) -> Place:
    """The URL of which a directory is a local copy; any other directory is returned unchanged."""
    home = folder / _HOME_FILE
    return Url(home.read_text().strip()) if home.is_file() else folder


def _states(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Inode, size and time of every file, by which changes are detected."""
    files = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {path: (state.st_ino, state.st_size, state.st_mtime_ns) for path, state in files}


_ANNOTATIONS = frozenset(
    (".csv", ".json", ".jsonl", ".parquet", ".srt", ".tsv", ".txt", ".vtt", ".yaml", ".yml")
)
_STALE_S = 7 * 86_400


@dataclass(frozen=True)
class Mirror:
    """Local copy of a directory in an object store, which a benchmark can open.

    Attributes:
        root: Local path to pass to the benchmark: `folder`, or a table in it.
        folder: The local directory.
        url: The URL of which `folder` is the copy.
        objects: Path relative to `folder` -> object in the store.
    """

    root: Path
    folder: Path
    url: Url
    objects: Mapping[str, Stored]

    def url_of(self, path: str) -> str:
        """The URL for a local path in the mirror; other paths are returned unchanged."""
        inside = path.removeprefix(f"{self.folder}/")
        return path if inside == path else str(self.url / inside)

    def fingerprint(self, url: str) -> str | None:
        """Fingerprint of a video or frame directory from the listing; `None` if not listed."""
        inside = url.removeprefix(f"{self.url}/")
        if inside in self.objects:
            return fingerprint_of(Url(url), [self.objects[inside]])
        start, end = (bisect_left(self._names, f"{inside}{mark}") for mark in ("/", "0"))
        frames = [self.objects[name] for name in self._names[start:end]]
        return fingerprint_of(Url(url), frames) if frames else None

    @cached_property
    def _names(self) -> list[str]:
        """Sorted paths; those below a directory `d` lie between `d/` and `d0` (`0` follows `/`)."""
        return sorted(self.objects)


def mirrored(url: Url, root: Path) -> Mirror:
    """Download the annotations at a URL unless an up-to-date local copy exists.

    Args:
        url: URL of a directory, or of a table, whose directory is then mirrored.
        root: Local directory of all mirrors.

    Raises:
        MissingFileError: If no objects are found at the URL.
    """
    store = ObjectStore(url.scheme)
    table = store.stat(url.path) if "." in url.name else None
    folder_url = url.parent if table else url
    entries = store.tree(folder_url.path)
    if not entries:
        raise MissingFileError(f"benchmark.root {url}: no files found; check the URL")
    inside = ((entry.path[len(folder_url.path) + 1 :], entry) for entry in entries)
    # Stores allow any name; on a disk it must be a relative path.
    objects = {path: entry for path, entry in inside if not {"", ".", ".."} & set(path.split("/"))}
    state = json.dumps([(name, e.size, e.version) for name, e in objects.items()])
    home = Path(os.path.expanduser(root)).absolute() / "mirrors" / _digest(str(folder_url))
    version = home / _digest(state)
    # Keep the last part of the URL: some benchmarks use the name of their folder.
    folder = version / (folder_url.name or "root")
    if not version.is_dir():
        _fill(store, version, folder.name, objects)
        for other in home.iterdir():  # running jobs may still read newer ones
            if other != version and time.time() - other.stat().st_mtime > _STALE_S:
                shutil.rmtree(other, ignore_errors=True)
    return Mirror(folder / url.name if table else folder, folder, folder_url, objects)


def _fill(store: ObjectStore, version: Path, name: str, objects: dict[str, Stored]) -> None:
    """Write a temporary directory and rename it; if two processes do so, the first one wins."""
    aside = version.with_name(f".{uuid.uuid4().hex}")
    try:
        fetched = []
        # A store may hold an object `a` and objects below `a/`; a disk cannot. In reverse order the
        # directory is made first, and the object of the same name is skipped.
        for inside, entry in reversed(objects.items()):
            target = aside / name / inside
            if target.is_dir():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
            if target.suffix.lower() in _ANNOTATIONS and entry.size:
                fetched.append((entry.path, target))
        store.download_all(fetched)
        try:
            aside.rename(version)
        except OSError:
            if not version.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


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
            # Of a single object the path inside is empty.
            store.download_all([(o.path, half / o.path[len(where.path) + 1 :]) for o in objects])
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
                # What is incomplete has its size reserved.
                files = () if path.suffix == _HALF else (path, *path.rglob("*"))
                size_now = sum(one.stat().st_size for one in files if one.is_file())
                entries.append((path.stat().st_mtime_ns, size_now, path))
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
    if len(objects) == 1 and objects[0].path == where.path:
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


def changed(where: Url | str) -> str:
    """Message of a `ChangedError`."""
    return f"{where} has been replaced since the job was planned; --resume plans it again"


def _remove(path: Path) -> None:
    """Remove a file or a directory; no error if it does not exist."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
