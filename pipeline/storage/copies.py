"""Local copies of directories in an object store; changed files are uploaded again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.storage.objects import ObjectStore
from pipeline.storage.urls import Place, Url

_HOME_FILE = ".home"


def _everything(name: str) -> bool:
    return True


@contextmanager
def local_copy(
    where: Place,
    wanted: Callable[[str], bool] = _everything,
    sent: Callable[[str], bool] = _everything,
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
