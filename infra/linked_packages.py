"""A directory with exactly the packages that some extras of pyproject.toml bring.

The packages are links into the running environment: nothing is downloaded, and what pyproject.toml
forgot to name is missing. Used by `check_wheel.sh` and by `tests/packaging`:

    python infra/linked_packages.py DIRECTORY [EXTRA...]
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def link_packages(folder: Path, extras: Iterable[str] = ()) -> None:
    """Link everything that `pip install tango-video[extras]` would install, but tango-video itself.

    Args:
        folder: Exists; receives one link per top-level file or package.
        extras: Extras of pyproject.toml.
    """
    for distribution in _closure(_requirements(extras)):
        for file in distribution.files or ():
            name = file.parts[0]
            if name not in ("..", "__pycache__") and not (folder / name).is_symlink():
                (folder / name).symlink_to(Path(str(distribution.locate_file(name))))


def _requirements(extras: Iterable[str]) -> list[str]:
    """Lines of pyproject.toml: those that are always installed, and those of the extras."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    found = list(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            own = Requirement(line)
            found += _requirements(own.extras) if own.name == project["name"] else [line]
    return found


def _closure(lines: Iterable[str]) -> list[metadata.Distribution]:
    """Installed distributions that the requirements stand for, with all that these need."""
    waiting = [(Requirement(line), "") for line in lines]
    seen: set[tuple[str, str]] = set()
    found: dict[str, metadata.Distribution] = {}
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        for inner in ("", *wanted.extras):
            if (wanted.name, inner) not in seen:
                seen.add((wanted.name, inner))
                found[wanted.name] = metadata.distribution(wanted.name)
                waiting += [
                    (Requirement(line), inner) for line in found[wanted.name].requires or ()
                ]
    return list(found.values())


if __name__ == "__main__":
    link_packages(Path(sys.argv[1]), sys.argv[2:])
