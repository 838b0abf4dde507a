"""The package that travels with a job: its recipe, what starts it there, and code if asked for.

Equal content gives equal bytes, so Ray, which names packages by their content, uploads a package
that the cluster has already only once.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from jobs.submit import on_cluster
from jobs.submit.working_dir import kept_files, working_files
from jobs.units import human_bytes

logger = logging.getLogger(__name__)

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


def package_files(
    working_dir: Path | None, *, with_code: bool = False, include: Sequence[Path] = ()
) -> Mapping[str, Path]:
    """Choose the files that travel with a job; name in the package -> file.

    Files that look like secrets are left out with a warning that names them.

    Args:
        working_dir: Directory to pack, without what git ignores; its files win over the
            installation's.
        with_code: Whether to pack this installation of tango-video, for clusters without it or with
            another version.
        include: Files of the directory that are packed although they look like secrets.

    Raises:
        PackageError: If the directory is not there, a link leads out of it, an included file is not
            in it, or there is more than `MAX_BYTES`.
    """
    files: dict[str, Path] = {}
    if with_code:
        for name in _OURS:
            package = Path(str(import_module(name).__file__)).parent
            for path in kept_files(package):
                files[(Path(name) / path.relative_to(package)).as_posix()] = path
    if working_dir is not None:
        raise_if_no_directory(working_dir)
        for path in include:
            if not (working_dir / path).is_file():
                raise PackageError(f"--include {path}: no such file in --working-dir {working_dir}")
        found = working_files(working_dir, include)
        if found.outside:
            raise PackageError(
                f"--working-dir {working_dir}: {_named(found.outside, working_dir)} "
                f"{'is a link that leads' if len(found.outside) == 1 else 'are links that lead'} "
                "out of it; copy what the job needs, or exclude it in a .gitignore"
            )
        if found.secrets:
            logger.warning(
                "not sent, as it looks like a secret: %s; send one with --include FILE",
                _named(found.secrets, working_dir),
            )
        for path in found.files:
            files[path.relative_to(working_dir).as_posix()] = path
    _raise_if_too_large(files, working_dir)
    return files


def size_line(files: Mapping[str, Path]) -> str:
    """Number and bytes of the files, for one line before they are sent."""
    total = sum(path.stat().st_size for path in files.values())
    return f"{len(files)} file{'' if len(files) == 1 else 's'} of {human_bytes(total)}"


def write_package(target: Path, recipe: str, files: Mapping[str, Path]) -> None:
    """Write the zip file of a job.

    Args:
        target: File to write; ends in `.zip`.
        recipe: The resolved recipe, YAML.
        files: As from `package_files`.
    """
    contents = {RECIPE_FILE: recipe.encode(), START_FILE: _start_script()}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package:
        for name, path in sorted(files.items()):
            if name not in contents:
                _add(package, name, path.read_bytes(), path.stat().st_mode)
        for name, data in contents.items():
            _add(package, name, data, 0o644)


def _named(paths: Sequence[Path], root: Path) -> str:
    names = [path.relative_to(root).as_posix() for path in paths]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


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
