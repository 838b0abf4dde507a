"""Which directories below a root are runs, and which run a user means by a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.results.facts import FACTS_FILE, JOB_FILE
from jobs.results.summary import SUMMARY_FILE
from pipeline.storage import Storage
from pipeline.storage.urls import Place, is_url, place

_MARKS = (JOB_FILE, FACTS_FILE, SUMMARY_FILE)


@dataclass(frozen=True)
class FoundRun:
    """A directory that a job, an import or a comparison has written.

    Attributes:
        place: Path or URL.
        storage: The same, opened.
        files: Names of the files directly in it, hidden ones, too.
    """

    place: Place
    storage: Storage
    files: frozenset[str]

    @property
    def name(self) -> str:
        """Its own name, without those of the directories around it."""
        return self.place.name if not isinstance(self.place, Path) else self.place.absolute().name


def find_runs(root: str) -> list[FoundRun]:
    """The runs directly in a directory, by name; a run itself stands for itself.

    Raises:
        FileNotFoundError: If there is no such directory.
    """
    where = place(root)
    storage = Storage.at(where)
    if not storage.is_folder():
        raise FileNotFoundError(
            f"{root}: no such directory; name the --output of your jobs, a path or a URL"
        )
    if (own := run_at(where)) is not None:
        return [own]
    found = (run_at(where / name) for name in storage.folders())
    return [one for one in found if one is not None]


def find_run(text: str, root: str) -> FoundRun:
    """The run that a user means.

    Args:
        text: Path or URL of a run, or the name of one in `root`, or the beginning of one.
        root: Directory or URL of runs.

    Raises:
        FileNotFoundError: If there is none, or several begin like that.
    """
    if (own := run_at(place(text))) is not None:
        return own
    if is_url(text) or "/" in text.rstrip("/"):
        raise FileNotFoundError(f"{text} is not a run: it holds none of {', '.join(_MARKS)}")
    where = place(root)
    names = [one for one in Storage.at(where).folders() if one.startswith(text)]
    runs = [run for name in names if (run := run_at(where / name)) is not None]
    exact = [run for run in runs if run.name == text]
    if len(exact or runs) == 1:
        return (exact or runs)[0]
    if not runs:
        raise FileNotFoundError(
            f"{text}: no run of {root} has this name or begins with it; `tango runs ls {root}` "
            "lists them"
        )
    raise FileNotFoundError(f"{text}: {len(runs)} runs of {root} begin with it: {named(runs)}")


def run_at(where: Place) -> FoundRun | None:
    """The run in a directory; `None` if it is none, or a file."""
    if isinstance(where, Path) and not where.is_dir():
        return None
    storage = Storage.at(where)
    files = frozenset(file.base_name for file in storage.files())
    return FoundRun(where, storage, files) if files & set(_MARKS) else None


def named(runs: Sequence[FoundRun]) -> str:
    """Some names for a message."""
    return ", ".join(run.name for run in runs[:5]) + (", …" if len(runs) > 5 else "")
