"""Directories and object stores that a job writes to."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path

from jobs.doctor.checks import CheckResult, note, ok, problem
from jobs.units import human_bytes
from pipeline.storage import Storage

# All tokens of one clip of a 7B model take 45 MB: this is room for 20 and for 200 clips.
_TOO_LITTLE, _LITTLE = 10**9, 10**10
# Ray moves no objects to a disk that is fuller than this.
_FULL_FOR_RAY = 0.95


def writable(location: str, setting: str) -> CheckResult:
    """Write a small file, read it back, delete it, and report the free space.

    No directory is created: if the location does not exist yet, the nearest existing parent is
    checked.

    Args:
        location: Local path or URL.
        setting: The option or key that the user can change.
    """
    if "://" in location and not location.startswith("file://"):
        _write_and_remove(Storage.at(location))
        return ok(f"{location} can be written to")
    directory = Path(Storage.at(location).root)
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    if not existing.is_dir():
        return problem(f"{existing} is not a directory; choose another {setting}")
    try:
        _write_and_remove(Storage.at(str(existing)))
    except OSError as error:
        return problem(
            f"{existing} cannot be written to ({error.strerror or error}); choose another {setting}"
        )
    about = f"{directory}, {'' if directory == existing else 'will be created, '}"
    free = shutil.disk_usage(existing).free
    if free < _TOO_LITTLE:
        return problem(
            f"{about}only {human_bytes(free)} free; free some space or choose another {setting}"
        )
    text = f"{about}{human_bytes(free)} free"
    return note(f"{text}: little for token caches") if free < _LITTLE else ok(text)


def temporary() -> CheckResult:
    """As `writable`, for the directory of Ray's logs and of objects that do not fit in memory."""
    directory = tempfile.gettempdir()
    result = writable(directory, "directory with the environment variable TMPDIR")
    usage = shutil.disk_usage(directory)
    share = 1 - usage.free / usage.total
    if result.status != "problem" and share > _FULL_FOR_RAY:
        return note(f"{directory} is {share:.1%} full: Ray moves no objects there above 95 %")
    return result


def _write_and_remove(storage: Storage) -> None:
    """Write, read and delete a small file; raises what the file system raises."""
    name = f".tango-doctor-{uuid.uuid4().hex}"
    storage.write(name, b"tango")
    try:
        if storage.read(name) != b"tango":
            raise OSError(f"{storage.root} does not give back what was written")
    finally:
        storage.delete(name)
