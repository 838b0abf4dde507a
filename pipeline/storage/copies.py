"""Local copies of directories in an object store.

`local_copy` copies a run, and uploads changed files again. `mirrored` copies the annotations of a
benchmark, which reads its files from a disk: annotation files are downloaded, all other files are
empty. The local path that a benchmark returns for a video is translated back into the object's URL.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.storage.objects import ObjectStore, Stored
from pipeline.storage.urls import Place, Url
from pipeline.storage.videos import fingerprint_of
from tango_core.errors import MissingFileError

_HOME_FILE = ".home"


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
    above = Path(tempfile.mkdtemp(prefix="tango-"))
    try:
        folder = above / where.name
        folder.mkdir()
        (folder / _HOME_FILE).write_text(f"{where}\n")
        pairs = []
        for entry in store.tree(where.path):
            name = entry.path[len(where.path) + 1 :]
            # Names that begin with a dot are internal files, such as leases.
            if name and not name.startswith(".") and wanted(name):
                pairs.append((entry.path, folder / name))
        for _, target in pairs:
            target.parent.mkdir(parents=True, exist_ok=True)
        store.download_all(pairs)
        before = _states(folder)
        yield folder
        for path, state in _states(folder).items():
            name = path.relative_to(folder).as_posix()
            if before.get(path) != state and sent(name):
                store.upload(path, (where / name).path)
    finally:
        shutil.rmtree(above, ignore_errors=True)


def home_of(folder: Path) -> Place:
    """The URL of which a directory is a local copy; any other directory is returned unchanged."""
    home = folder / _HOME_FILE
    return Url(home.read_text().strip()) if home.is_file() else folder


def _states(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Inode, size and time of every file, by which changes are detected."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            found[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


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
    start = len(folder_url.path) + 1
    objects = {entry.path[start:]: entry for entry in entries if _is_safe(entry.path[start:])}
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
            if target.suffix.lower() in _ANNOTATIONS and entry.size:
                fetched.append((entry.path, target))
            else:
                target.touch()
        store.download_all(fetched)
        try:
            aside.rename(version)
        except OSError:
            if not version.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _is_safe(inside: str) -> bool:
    """Whether an object name is a valid relative path on a disk; stores allow any name."""
    return not {"", ".", ".."} & set(inside.split("/"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
