"""A local copy of a benchmark's annotations; videos are empty placeholders.

Benchmarks look for their files on a disk. So the listing of the store becomes a directory: files of
annotations are fetched, and every other object is an empty file of its name. What a benchmark then
calls the path of a video is translated back into the object's URL.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.storage.objects import ObjectStore, Stored
from pipeline.storage.urls import Url
from pipeline.storage.videos import fingerprint_of
from tango_core.errors import MissingFileError

_ANNOTATIONS = frozenset(
    (".csv", ".json", ".jsonl", ".parquet", ".srt", ".tsv", ".txt", ".vtt", ".yaml", ".yml")
)
_STALE_S = 7 * 86_400


@dataclass(frozen=True)
class Mirror:
    """A directory or a table of a store, as a benchmark opens it.

    Attributes:
        root: Local path that stands for the URL.
        folder: The local directory that all paths of its clips begin with.
        url: What that directory stands for.
        objects: Path below it -> the object.
    """

    root: Path
    folder: Path
    url: Url
    objects: Mapping[str, Stored]

    def url_of(self, path: str) -> str:
        """The URL of what a benchmark found at a local path; other paths stay as they are."""
        inside = self._inside(path)
        return path if inside is None else str(self.url / inside)

    def fingerprint(self, url: str) -> str | None:
        """Identify a video or a directory of frames by the listing; `None` if it is not in it."""
        if not url.startswith(f"{self.url}/"):
            return None
        inside = url[len(str(self.url)) + 1 :]
        if inside in self.objects:
            return fingerprint_of(Url(url), [self.objects[inside]])
        start, end = (bisect_left(self._names, f"{inside}{mark}") for mark in ("/", "0"))
        frames = [self.objects[name] for name in self._names[start:end]]
        return fingerprint_of(Url(url), frames) if frames else None

    @cached_property
    def _names(self) -> list[str]:
        """In order: what is below a directory stands together, before `0`, which follows `/`."""
        return sorted(self.objects)

    def _inside(self, path: str) -> str | None:
        """A local path relative to the directory; `None` if it is elsewhere."""
        start = f"{self.folder}/"
        return path[len(start) :] if path.startswith(start) else None


def mirrored(url: Url, root: Path) -> Mirror:
    """List a URL and bring its annotations here; what is here already is not fetched again.

    Args:
        url: Of a directory, or of a table, whose directory is then listed.
        root: Directory that holds all mirrors of this machine.

    Raises:
        FileNotFoundError: If nothing is there.
    """
    store = ObjectStore(url.scheme)
    table = store.stat(url.path) if "." in url.name else None
    folder_url = url.parent if table else url
    entries = store.tree(folder_url.path)
    if not entries:
        raise MissingFileError(f"benchmark.root {url}: nothing is there")
    start = len(folder_url.path) + 1
    objects = {entry.path[start:]: entry for entry in entries if _is_safe(entry.path[start:])}
    state = json.dumps([(name, e.size, e.version) for name, e in objects.items()])
    home = Path(os.path.expanduser(root)).absolute() / "mirrors" / _digest(str(folder_url))
    version = home / _digest(state)
    # The last part is that of the URL: benchmarks call things by the name of their folder.
    folder = version / (folder_url.name or "root")
    if not version.is_dir():
        _fill(store, version, folder.name, objects)
        _forget_old(home, version)
    return Mirror(folder / url.name if table else folder, folder, folder_url, objects)


def _fill(store: ObjectStore, version: Path, name: str, objects: dict[str, Stored]) -> None:
    """Write the directory beside its place, then put it there; of two who do, one has won."""
    aside = version.with_name(f".{uuid.uuid4().hex}")
    try:
        fetched = []
        # From the last name to the first, so that a directory is made before an object of its name,
        # which a store allows and a disk does not; the object is left out.
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


def _forget_old(home: Path, version: Path) -> None:
    """Remove versions of before last week; a job of today may still read a newer one."""
    for other in home.iterdir():
        if other != version and time.time() - other.stat().st_mtime > _STALE_S:
            shutil.rmtree(other, ignore_errors=True)


def _is_safe(inside: str) -> bool:
    """Whether a name can be a path below a directory: stores allow any."""
    parts = inside.split("/")
    return bool(inside) and not any(part in ("", ".", "..") for part in parts)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
