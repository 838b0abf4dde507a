"""Directories and URLs that a job reads and writes."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.storage import Storage
from pipeline.storage.urls import Place, Url, place
from tango_core.errors import InputError

OpenStorage = Callable[[str | Place], Storage]


@dataclass(frozen=True)
class Locations:
    """Where a job reads and writes; nothing here changes a result.

    Attributes:
        output: Directory or URL of all runs.
        cache: Directory or URL of the token caches; `None` for one inside `output`.
        tracking_uri: MLflow server or store; `None` for a sqlite store inside `output`, or inside
            `runs` if `output` is a URL.
        resume: Run to continue, as a path or a name inside `output`.
        address: Ray cluster; `None` for a Ray of our own on this machine.
        open_storage: Opens run directories and caches.
        steal: Whether a run is continued that another driver works on; that one ends.
        recipe: The recipe file, as it was named; kept with the run. "" if there is none.
        continues: Whether the newest unfinished run of the same job is continued, if there is one.
    """

    output: Place
    cache: str | None = None
    tracking_uri: str | None = None
    resume: str | None = None
    address: str | None = None
    open_storage: OpenStorage = Storage.at
    steal: bool = False
    continues: bool = False
    recipe: str = ""

    def __post_init__(self) -> None:
        """Refuse two ways to say which run goes on."""
        if self.resume and self.continues:
            raise InputError(
                f"--continue finds the run itself, and --resume names {self.resume}; give one"
            )

    @property
    def cache_root(self) -> str:
        """URL or absolute path of the token caches: workers may run in another directory."""
        where = place(self.cache) if self.cache else self.output / "cache"
        return str(where) if isinstance(where, Url) else str(where.absolute())

    def raise_if_unusable(self) -> None:
        """Refuse directories of runs or caches that cannot be written to."""
        raise_if_unusable(self.output)
        if self.cache is not None:
            raise_if_unusable(place(self.cache), "--cache")


def raise_if_unusable(output: Place, option: str = "--output") -> None:
    """Refuse a directory of runs or caches that cannot be written to, before anything is computed.

    Nothing is left behind: the nearest directory that is there is tried with a file of no name.

    Raises:
        ValueError: In one line that names the option.
    """
    if isinstance(output, Url):  # asking a store takes a connection
        return
    there = output.absolute()
    while not os.path.lexists(there):
        there = there.parent
    try:
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{there} is not a directory")
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        if there.is_dir():
            reason = f"nothing can be made in {there} ({reason})"
        raise InputError(
            f"{option} {output} cannot be written to: {reason}; choose another one"
        ) from error
