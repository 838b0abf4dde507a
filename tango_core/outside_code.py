"""Source files behind a class from outside this package: what they are, and their digest.

A shipped method changes with a release, a method of a user with every save of an editor. Its tokens
are therefore cached under a digest of its source files as well.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from tango_core.imports import file_of, imports_of, with_parents

_PACKAGE = "tango_core"
_INSTALLED = {"site-packages", "dist-packages"}


def is_outside(cls: type) -> bool:
    """Whether a class is defined outside this package."""
    return _top(cls.__module__) != _PACKAGE


@cache
def source_digest(cls: type) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a class's source files.

    It is computed once per class: an edited file changes the digest when its module is imported
    again, together with the code that runs.

    Raises:
        ValueError: If the class was not read from a file.
    """
    state = hashlib.sha256()
    for name, path in sorted(source_files(cls).items()):
        content = path.read_bytes()
        state.update(f"{name} {len(content)}\n".encode() + content)
    return state.hexdigest()[:16]


def source_files(cls: type) -> dict[str, Path]:
    """Module name -> file of the code that a class from outside is made of.

    These are the modules of the class and of its base classes, and what they import from the same
    place: from the same project directory, or, for an installed package, from that package. Other
    libraries, and modules imported under names known only at run time, do not count.

    Raises:
        ValueError: If the class was not read from a file.
    """
    found: dict[str, Path] = {}
    for base in inspect.getmro(cls):
        if is_outside(base) and _top(base.__module__) not in sys.stdlib_module_names | {"torch"}:
            found |= _reached(sys.modules[base.__module__], cls)
    return found


def modules_to_send(cls: type) -> list[ModuleType]:
    """Loaded modules of a class that a worker on another machine cannot be expected to have.

    Empty for classes of this package and of installed packages.
    """
    if not is_outside(cls) or cls.__module__ == "__main__":
        return []
    files = source_files(cls)
    return [
        sys.modules[name]
        for name, path in sorted(files.items())
        if name in sys.modules and not _INSTALLED & set(path.parts)
    ]


def _reached(module: ModuleType, cls: type) -> dict[str, Path]:
    """The module and everything it imports from the same place, directly or not."""
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise ValueError(
            f"{cls.__name__} is defined in {module.__name__}, which has no source file, so its "
            "results cannot be cached; move the class to a .py file"
        )
    path = Path(file).absolute()
    name = path.stem if module.__name__ == "__main__" else module.__name__
    levels = len(name.split(".")) + (path.name == "__init__.py")
    root = path.parents[levels - 1]
    found = {name: path}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        for imported in imports_of(name, found[name]):
            for part in with_parents(imported):
                if part in found or (_INSTALLED & set(path.parts) and _top(part) != _top(name)):
                    continue
                source = file_of(root, part)
                if source is not None and _top(part) not in (_PACKAGE, "pipeline", "jobs"):
                    found[part] = source
                    waiting.append(part)
    return found


def _top(name: str) -> str:
    """The first part of a dotted name."""
    return name.partition(".")[0]
