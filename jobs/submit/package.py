"""The package that travels with a job: its recipe, what starts it there, and code if asked for.

Equal content gives equal bytes, so Ray, which names packages by their content, uploads a package
that the cluster has already only once.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from jobs.submit import on_cluster
from jobs.submit.ignored import kept_files
from jobs.units import human_bytes

RECIPE_FILE = "tango_recipe.yaml"
START_FILE = "tango_start.py"
MAX_BYTES = 100_000_000
"""Ray keeps packages in the memory of the head; videos and checkpoints do not belong there."""

_OURS = ("jobs", "pipeline", "tango_core")
_NAMED = 5


class PackageError(ValueError):
    """What was asked to be packed cannot be; the message is one line for the user."""


def raise_if_no_directory(working_dir: Path) -> None:
    """Refuse what cannot be packed.

    Raises:
        PackageError: If it is no directory.
    """
    if not working_dir.is_dir():
        what = "a file, not a directory" if working_dir.exists() else "no such directory"
        raise PackageError(f"--working-dir {working_dir}: {what}")


def write_package(
    target: Path, recipe: str, *, working_dir: Path | None = None, with_code: bool = False
) -> int:
    """Write the zip file of a job.

    Args:
        target: File to write; ends in `.zip`.
        recipe: The resolved recipe, YAML.
        working_dir: Directory to pack, without what its `.gitignore` files exclude.
        with_code: Whether to pack this installation of tango-video, for clusters without it or with
            another version.

    Returns:
        Number of files.

    Raises:
        PackageError: If the directory is not there, or holds more than `MAX_BYTES`.
    """
    files = _files(working_dir, with_code)
    _raise_if_too_large(files, working_dir)
    contents = {RECIPE_FILE: recipe.encode(), START_FILE: _start_script()}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package:
        for name, path in sorted(files.items()):
            if name not in contents:
                _add(package, name, path.read_bytes(), path.stat().st_mode)
        for name, data in contents.items():
            _add(package, name, data, 0o644)
    return len(files.keys() | contents.keys())


def _files(working_dir: Path | None, with_code: bool) -> Mapping[str, Path]:
    """Name in the package -> file; the working directory wins over the installation."""
    files: dict[str, Path] = {}
    if with_code:
        for name in _OURS:
            package = Path(str(import_module(name).__file__)).parent
            for path in kept_files(package):
                files[(Path(name) / path.relative_to(package)).as_posix()] = path
    if working_dir is not None:
        raise_if_no_directory(working_dir)
        for path in kept_files(working_dir):
            files[path.relative_to(working_dir).as_posix()] = path
    return files


def _raise_if_too_large(files: Mapping[str, Path], working_dir: Path | None) -> None:
    """Refuse a package that is no code, and name what makes it large."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    total = sum(sizes.values())
    if total <= MAX_BYTES:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_NAMED]
    named = ", ".join(f"{name} ({human_bytes(sizes[name])})" for name in largest)
    raise PackageError(
        f"--working-dir {working_dir}: {len(files)} files of {human_bytes(total)} are more than "
        f"the {human_bytes(MAX_BYTES)} that a job may carry; the largest are {named}: exclude what "
        "the job does not need in a .gitignore, and put data where the cluster can read it"
    )


def _start_script() -> bytes:
    """The script that starts the job there; it needs the standard library alone."""
    return Path(on_cluster.__file__).read_bytes()


def _add(package: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    """A file under a fixed date."""
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (mode & 0o777) << 16
    package.writestr(info, data)
