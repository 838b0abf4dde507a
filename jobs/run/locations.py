"""Where a job reads and writes."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.storage import Storage

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

OpenStorage = Callable[[str | Path], Storage]


@dataclass(frozen=True)
class Locations:
    """Where a job reads and writes; nothing here changes a result.

    Attributes:
        output: Directory of all runs.
        cache: Directory or URL of the token caches; `None` for one inside `output`.
        tracking_uri: MLflow server or store; `None` for a sqlite store inside `output`.
        resume: Run to continue, as a path or a name inside `output`.
        address: Ray cluster; `None` for a Ray of our own on this machine.
        open_storage: Opens run directories and caches.
        steal: Whether a run is continued that another driver works on; that one ends.
        continues: Whether the newest unfinished run of the same job is continued, if there is one.
    """

    output: Path
    cache: str | None = None
    tracking_uri: str | None = None
    resume: str | None = None
    address: str | None = None
    open_storage: OpenStorage = Storage.at
    steal: bool = False
    continues: bool = False

    def __post_init__(self) -> None:
        """Refuse two ways to say which run goes on."""
        if self.resume and self.continues:
            raise ValueError(
                f"--continue finds the run itself, and --resume names {self.resume}; give one"
            )

    @property
    def cache_root(self) -> str:
        """URL or absolute path of the token caches: workers may run in another directory."""
        if self.cache and "://" in self.cache:
            return self.cache
        return str(Path(self.cache or self.output / "cache").absolute())


def raise_if_unusable(output: Path, option: str = "--output") -> None:
    """Refuse a directory of runs or caches that cannot be written to, before anything is computed.

    Nothing is left behind: the nearest directory that is there is tried with a file of no name.

    Raises:
        ValueError: In one line that names the option.
    """
    if _URL.match(str(output)):
        raise ValueError(
            f"{option} {output} is a URL; runs are written to a directory, "
            "only --cache may be a URL"
        )
    place = output.absolute()
    while not os.path.lexists(place):
        place = place.parent
    try:
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{place} is not a directory")
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} {output} cannot be written to: {error.strerror or error}; choose another one"
        ) from error
