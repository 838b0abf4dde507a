"""Directories and stores that a job writes to."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path

from jobs.doctor.checks import Remark, note, ok, problem
from jobs.units import human_bytes
from pipeline.storage import Storage

# All tokens of a clip of a 7B model are 45 MB, so this is gone after twenty or two hundred clips.
_TOO_LITTLE, _LITTLE = 10**9, 10**10
# Above this share of a full disk Ray stops moving objects there.
_FULL_FOR_RAY = 0.95


def place(location: str, setting: str) -> Remark:
    """Write a file, read it back, remove it, and see how much room there is.

    Nothing is left behind: for a directory that does not exist yet, the nearest one that does is
    tried.

    Args:
        location: Local path or URL.
        setting: What the user can change.
    """
    if "://" in location and not location.startswith("file://"):
        _write_and_remove(Storage.at(location))
        return ok(f"{location} can be written to")
    wanted = Path(Storage.at(location).root)
    existing = next(parent for parent in (wanted, *wanted.parents) if parent.exists())
    if not existing.is_dir():
        return problem(f"{existing} is not a directory; choose another {setting}")
    try:
        _write_and_remove(Storage.at(str(existing)))
    except OSError as error:
        return problem(
            f"{existing} cannot be written to ({error.strerror or error}); choose another {setting}"
        )
    about = f"{wanted}, {'' if wanted == existing else 'to be made, '}"
    free = shutil.disk_usage(existing).free
    if free < _TOO_LITTLE:
        return problem(
            f"{about}only {human_bytes(free)} free; make room or choose another {setting}"
        )
    text = f"{about}{human_bytes(free)} free"
    return note(f"{text}: little for token caches") if free < _LITTLE else ok(text)


def temporary() -> Remark:
    """As `place`, for the directory where Ray keeps its logs and what it cannot hold in memory."""
    directory = tempfile.gettempdir()
    remark = place(directory, "directory with the environment variable TMPDIR")
    usage = shutil.disk_usage(directory)
    share = 1 - usage.free / usage.total
    if remark.mark != "problem" and share > _FULL_FOR_RAY:
        return note(f"{directory} is {share:.1%} full: Ray moves no objects there above 95 %")
    return remark


def _write_and_remove(storage: Storage) -> None:
    """Prove that files can be made and removed; raises what the file system raises."""
    name = f".tango-doctor-{uuid.uuid4().hex}"
    storage.write(name, b"tango")
    try:
        if storage.read(name) != b"tango":
            raise OSError(f"{storage.root} does not give back what was written")
    finally:
        storage.delete(name)
