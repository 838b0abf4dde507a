"""Source digest of methods and models from outside this package.

A shipped method or model changes with a release, one of a user with every save of an editor. Its
tokens are therefore cached under a digest of its source files as well.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from tango_core.errors import InputError
from tango_core.imports import file_of, imports_of, with_parents
from tango_core.loaded_code import is_as_loaded, stamp_of

_PACKAGE = "tango_core"
_INSTALLED = {"site-packages", "dist-packages"}


def is_outside(what: type | ModuleType) -> bool:
    """Whether a class or module is outside this package."""
    return _top(_module_of(what)) != _PACKAGE


@dataclass(frozen=True)
class _Sources:
    """The source files of a class when it was defined, or of a module.

    Attributes:
        digest: Of all of them.
        later: Files of modules that had not been imported then, with their stamps.
        edited: File of a module that is in memory as it was before an edit; `None` without one.
    """

    digest: str
    later: Mapping[str, tuple[Path, tuple[int, int]]]
    edited: Path | None


_DEFINED: WeakKeyDictionary[type | ModuleType, _Sources] = WeakKeyDictionary()


def note_sources(cls: type) -> None:
    """Remember the source files of a class from outside; called while its module is imported.

    A class without source files is passed over: `source_digest` says what is wrong with it.
    """
    try:
        _DEFINED[cls] = _read_sources(cls)
    except (ValueError, KeyError, OSError):
        return


def source_digest(what: type | ModuleType) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the source files of a class or module.

    It is that of the files as they were when the class was defined: an edited file changes the
    digest when its module is imported again, together with the code that runs.

    Raises:
        ValueError: If it was not read from a file, or a file was edited between the import of two
            modules that it is made of.
    """
    sources = _DEFINED.get(what)
    if sources is None:
        sources = _DEFINED[what] = _read_sources(what)
    edited = sources.edited
    for name, (path, stamp) in sources.later.items():
        if name in sys.modules and (not path.is_file() or stamp_of(path) != stamp):
            edited = path
    if edited is not None:
        raise InputError(
            f"{edited} has changed on disk since it was imported, so the results of "
            f"{what.__name__} cannot be cached: restart the process"
        )
    return sources.digest


def _read_sources(what: type | ModuleType) -> _Sources:
    """What the source files of a class or module are now."""
    state = hashlib.sha256()
    later: dict[str, tuple[Path, tuple[int, int]]] = {}
    edited = None
    own = what.__module__ if isinstance(what, type) else ""
    for name, path in sorted(source_files(what).items()):
        module, stamp = sys.modules.get(name), stamp_of(path)
        content = path.read_bytes()
        state.update(f"{name} {len(content)}\n".encode() + content)
        if module is None:
            later[name] = path, stamp
        elif (
            name != own and _is_older(module) and not is_as_loaded(module, path)
        ):  # the class's own module is what is being imported
            edited = path
    return _Sources(state.hexdigest()[:16], later, edited)


def _is_older(module: ModuleType) -> bool:
    """Whether a module of a user was imported before now; those of installed packages stay."""
    file, spec = getattr(module, "__file__", None), module.__spec__
    if not file or _INSTALLED & set(Path(file).parts) or spec is None:
        return False
    return not getattr(spec, "_initializing", False)


def source_files(what: type | ModuleType) -> dict[str, Path]:
    """Module name -> file of the code that a class or module from outside is made of.

    These are the module, or those of the class and of its base classes, and what they import from
    the same place: from the same project directory, or, for an installed package, from that
    package. Other libraries, and modules imported under names known only at run time, do not count.

    Raises:
        ValueError: If it was not read from a file.
    """
    parts = inspect.getmro(what) if isinstance(what, type) else (what,)
    found: dict[str, Path] = {}
    for part in parts:
        name = _module_of(part)
        if is_outside(part) and _top(name) not in sys.stdlib_module_names | {"torch"}:
            found |= _reached(sys.modules[name], what.__name__)
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


def _module_of(what: type | ModuleType) -> str:
    """The dotted name of a module, or of the one that a class is defined in."""
    return what.__name__ if isinstance(what, ModuleType) else what.__module__


def _reached(module: ModuleType, what: str) -> dict[str, Path]:
    """The module and everything it imports from the same place, directly or not."""
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise InputError(
            f"{what} is defined in {module.__name__}, which has no source file, so its "
            "results cannot be cached; move it to a .py file"
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
