"""A new SQLite store begins as a copy of an empty one, which the first new store leaves behind.

MLflow makes a new database by running every migration that it ever had, a second of work each time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlparse

from tango_core.local_files import user_cache


@contextmanager
def begun(tracking_uri: str, pattern: Path | None = None) -> Iterator[None]:
    """Around the first opening of a store: makes a SQLite store that is not there, if it can.

    Whatever fails here, MLflow makes its store itself, as it does for other databases.

    Args:
        tracking_uri: Of the store.
        pattern: The empty store; `None` for that of this user and this version of MLflow.
    """
    path = sqlite_file(tracking_uri)
    if path is None or path.exists():
        yield
        return
    pattern = pattern or user_cache() / "mlflow" / f"{version('mlflow')}.db"
    copied = False
    with suppress(OSError, sqlite3.Error):
        copied = pattern.is_file() and _put(pattern, path)
    yield
    if not copied:
        with suppress(OSError, sqlite3.Error):
            pattern.parent.mkdir(parents=True, exist_ok=True)
            pattern.unlink(missing_ok=True)  # one that could not be copied
            _put(path, pattern)


def sqlite_file(tracking_uri: str) -> Path | None:
    """The file of a SQLite store; `None` for one without, another store, or one with options."""
    parts = urlparse(tracking_uri)
    plain = parts.scheme == "sqlite" and not (parts.netloc or parts.query or parts.fragment)
    plain = plain and parts.path != "/:memory:"
    return Path(parts.path[1:]) if plain and len(parts.path) > 1 else None


def _put(source: Path, target: Path) -> bool:
    """Copy a store without its experiments, whole or not at all; never over one that is there.

    The one experiment of a new store names a directory beside it, and MLflow makes it where it is
    missing.

    Returns:
        Whether it was copied: not if it is damaged or holds runs.
    """
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with (
            closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(aside)) as copy,
        ):
            original.backup(copy)
            sound = copy.execute("PRAGMA quick_check").fetchall() == [("ok",)]
            if not sound or copy.execute("SELECT 1 FROM runs").fetchone():
                return False
            with copy:
                copy.execute("DELETE FROM experiments")
        os.link(aside, target)
        return True
    finally:
        aside.unlink(missing_ok=True)
