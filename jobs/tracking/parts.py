"""The spool of a run in a store: files that grow, as objects that cannot be appended to.

`tracking/parts/<attempt>/events.jsonl/000000` holds whole lines and is written again until it is
full. Lines may be there twice, in a part and in the whole file, after a kill in between; MLflow
keeps one of two equal points.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from jobs.results.facts import FACTS_FILE, JOB_FILE
from jobs.tracking.spool import EVENTS, FOLDER, SENT, SYSTEM
from pipeline.remote.copies import local_copy
from pipeline.remote.objects import PARALLEL, ObjectStore
from pipeline.remote.urls import Place, Url

PARTS = "parts"
PART_BYTES = 256 * 2**10


class Parts:
    """One file of the spool that grows, as objects that do not.

    Args:
        store: For them.
        run_dir: Of the run.
        path: The file. What it holds now is in the store by another name.
        attempt: Name of this driver.
    """

    def __init__(self, store: ObjectStore, run_dir: Url, path: Path, attempt: str) -> None:
        self._store, self._run_dir, self._path = store, run_dir, path
        self._inside = f"{FOLDER}/{PARTS}/{attempt}/{path.name}"
        self._base = path.stat().st_size if path.is_file() else 0
        self._start = self._end = self._base
        self._number = 0

    def put_start(self) -> None:
        """Write what was there at the start as the whole file."""
        if self._base:
            with self._path.open("rb") as file:
                start = file.read(self._base)
            self._store.write((self._run_dir / FOLDER / self._path.name).path, start)

    def send(self) -> None:
        """Write the open part again, with what is new, and begin the next one if it is full."""
        while True:
            data, more = _whole_lines(self._path, self._start)
            if self._start + len(data) > self._end:
                name = f"{self._inside}/{self._number:06d}"
                self._store.write((self._run_dir / name).path, data)
                self._end = self._start + len(data)
            if not more:
                return
            self._start, self._number = self._end, self._number + 1

    def names(self) -> list[str]:
        """The objects, from the run directory on."""
        last = self._number + (self._end > self._start)
        return [f"{self._inside}/{number:06d}" for number in range(last)]


def is_spool(name: str) -> bool:
    """Whether a file of a run is what its job tells MLflow, by its path in the run."""
    folder, _, rest = name.partition("/")
    if folder != FOLDER:
        return False
    pieces = rest.split("/")
    if len(pieces) == 1:
        return rest in (EVENTS, SYSTEM, SENT)
    return len(pieces) == 4 and pieces[0] == PARTS and pieces[2] in (EVENTS, SYSTEM)


def put_together(run_dir: Path) -> list[str]:
    """Append the parts in a local copy of a run to the files that they are parts of.

    Returns:
        The paths that the parts had in the run.
    """
    folder = run_dir / FOLDER / PARTS
    parts = sorted(path for path in folder.glob("*/*/*") if path.is_file())
    for part in parts:
        with (run_dir / FOLDER / part.parent.name).open("ab") as whole:
            whole.write(part.read_bytes())
    names = [part.relative_to(run_dir).as_posix() for part in parts]
    shutil.rmtree(folder, ignore_errors=True)
    return names


def forget(store: ObjectStore, run_dir: Url, names: list[str]) -> None:
    """Remove parts of a spool from the store."""
    with ThreadPoolExecutor(PARALLEL) as workers:
        list(workers.map(store.delete, [(run_dir / name).path for name in names]))


@contextmanager
def run_at_hand(where: Place) -> Iterator[Path]:
    """The files of a run on this machine, its spool put together; what is written is sent back.

    Raises:
        OSError: If the store does not answer.
    """
    names: list[str] = []
    with local_copy(where) as folder:
        if isinstance(where, Url):
            names = put_together(folder)
        yield folder
    if isinstance(where, Url):
        forget(ObjectStore(where.scheme), where, names)


@contextmanager
def spool_at_hand(where: Url) -> Iterator[Path]:
    """The spool of a run and what describes the run, on this machine; nothing is sent back.

    Raises:
        OSError: If the store does not answer.
    """
    needed = (JOB_FILE, FACTS_FILE)
    with local_copy(
        where, lambda name: is_spool(name) or name in needed, lambda name: False
    ) as folder:
        put_together(folder)
        yield folder


def _whole_lines(path: Path, start: int) -> tuple[bytes, bool]:
    """Lines behind an offset, about as many as fit into a part, and whether there are more."""
    if not path.is_file():
        return b"", False
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(PART_BYTES)
        if len(data) < PART_BYTES:
            return data[: data.rfind(b"\n") + 1], False
        data += file.readline()  # the line that the limit cut
        return (data, True) if data.endswith(b"\n") else (data[: data.rfind(b"\n") + 1], False)
