"""Directories and URLs that a job reads and writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.storage import Storage
from pipeline.storage.urls import Place, Url, place
from tango_core.errors import InputError

OpenStorage = Callable[[str | Place], Storage]


@dataclass(frozen=True)
class Locations:
    """Where a job reads and writes; does not affect results.

    Attributes:
        output: Directory or URL of all runs.
        cache: Directory or URL of the token caches; `None` for one inside `output`.
        tracking_uri: MLflow server or store; `None` for a SQLite store inside `output`, or inside
            `runs` if `output` is a URL.
        resume: Run to continue, as a path or a name inside `output`.
        address: Address of a Ray cluster; `None` to start Ray on this machine.
        open_storage: Opens run directories and caches.
        steal: Whether to take over a run that another driver works on; that driver stops.
        recipe: The recipe file as given on the command line, recorded in the run; "" for none.
        continues: Whether to continue the newest unfinished run of the same job, if there is one;
            `resume` comes first.
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

    @property
    def cache_root(self) -> str:
        """URL or absolute path of the token caches; workers may run in another directory."""
        where = place(self.cache) if self.cache else self.output / "cache"
        return str(where) if isinstance(where, Url) else str(where.absolute())

    def raise_if_unusable(self) -> None:
        """Refuse directories of runs or caches that cannot be written to."""
        raise_if_unusable(self.output)
        if self.cache is not None:
            raise_if_unusable(place(self.cache), "--cache")


def raise_if_unusable(output: Place, option: str = "--output") -> None:
    """Refuse a directory of runs or caches that cannot be written to, before anything is computed.

    Raises:
        InputError: If it cannot be written to; the message names the option.
    """
    if isinstance(output, Url):  # checking a store needs a connection
        return
    path = output.absolute()
    existing = next(one for one in (path, *path.parents) if os.path.lexists(one))
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(
            f"{option} {output} cannot be written to: {existing} is not a writable directory; "
            "choose another one"
        )
