"""Digests of methods' source code, which are part of cache names and of a run's facts.

All digests are taken when the code is imported. A shipped method is known by its name, its options
and its version as long as the sources in this package are those of `released.json`; in a checkout
with edited sources every shipped method has the digest of all of them as well. A class from outside
this package always has the digest of its own source files.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tango_core.errors import InputError

PACKAGE = Path(__file__).parent
TABLE = PACKAGE / "compressors" / "released.json"
_OURS = ("tango_core", "pipeline", "jobs")
_INSTALLED = {"site-packages", "dist-packages"}
_NOTED = "_source_digest"


def current_digests() -> dict[str, str]:
    """Digests of all files that affect shipped methods, by path in the package."""
    files = [PACKAGE / "combination.py", *(PACKAGE / "ops").rglob("*.py")]
    files += (
        file
        for file in (PACKAGE / "compressors").rglob("*.py")
        if file.parent.name != "contract" and file != PACKAGE / "compressors" / "__init__.py"
    )
    return {
        file.relative_to(PACKAGE).as_posix(): _short(file.read_bytes().replace(b"\r\n", b"\n"))
        for file in sorted(files)
    }


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


_IMPORTED = current_digests()


@cache
def edited_digest(*, inside_the_model: bool = False) -> str | None:
    """Digest of the sources of shipped methods, if they are not the released ones.

    Args:
        inside_the_model: Check the in-LLM methods instead of the compressors.

    Returns:
        16 hexadecimal digits, or `None` if all files are as released.
    """
    released: dict[str, str] = json.loads(TABLE.read_text())
    ours, theirs = (
        {path: one for path, one in table.items() if ("/in_llm/" in path) == inside_the_model}
        for table in (_IMPORTED, released)
    )
    return None if ours == theirs else _short(json.dumps(ours).encode())


def pruner_identity(cls: type) -> str:
    """Identity of the code of a method inside the language model.

    It is not part of the name of a token cache, whose tokens do not depend on such a method.
    """
    from tango_core import __version__

    shipped = edited_digest(inside_the_model=True) or f"released with {__version__}"
    return f"{shipped}, {source_digest(cls)}" if is_outside(cls) else shipped


def is_outside(what: type | ModuleType) -> bool:
    """Whether a class or module is outside this package."""
    return _module_of(what).partition(".")[0] != "tango_core"


def note_sources(cls: type) -> None:
    """Keep the digest of a class from outside; called while its module is imported.

    It is an attribute of the class, so it travels with a class that is sent to a worker by value. A
    class without source files is passed over: `source_digest` reports what is wrong with it.
    """
    try:
        setattr(cls, _NOTED, _read(cls))
    except (InputError, KeyError, OSError):
        return


def source_digest(what: type | ModuleType) -> str:
    """16 hexadecimal digits for the source files of a class or module from outside.

    Raises:
        InputError: If it was not read from a file.
    """
    noted: Any = vars(what).get(_NOTED)
    if noted is None:
        noted = _read(what)
        setattr(what, _NOTED, noted)
    return str(noted)


def _read(what: type | ModuleType) -> str:
    state = hashlib.sha256()
    for name, path in sorted(source_files(what).items()):
        content = path.read_bytes()
        state.update(f"{name} {len(content)}\n".encode() + content)
    return state.hexdigest()[:16]


def source_files(what: type | ModuleType) -> dict[str, Path]:
    """Source files by module name of an external class or module.

    These are the module, or those of the class and of its base classes, and what they import from
    the same place: from the same project directory, or, for an installed package, from that
    package. Other libraries, and modules imported under names known only at run time, do not count.

    Raises:
        InputError: If it was not read from a file.
    """
    found: dict[str, Path] = {}
    for part in inspect.getmro(what) if isinstance(what, type) else (what,):
        name = _module_of(part)
        if is_outside(part) and name.partition(".")[0] not in sys.stdlib_module_names | {"torch"}:
            found |= _reached(sys.modules[name], what.__name__)
    return found


def modules_to_send(cls: type) -> list[ModuleType]:
    """Loaded modules of a class that a worker on another machine cannot be expected to have.

    Empty for classes of this package and of installed packages.
    """
    if not is_outside(cls) or cls.__module__ == "__main__":
        return []
    return [
        sys.modules[name]
        for name, path in sorted(source_files(cls).items())
        if name in sys.modules and not _INSTALLED & set(path.parts)
    ]


def _module_of(what: type | ModuleType) -> str:
    """The dotted name of a module, or of the one that a class is defined in."""
    return what.__name__ if isinstance(what, ModuleType) else what.__module__


def _imports_of(name: str, path: Path) -> Iterator[str]:
    """Absolute names of what a module imports, inside functions too, with all their parents."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # not Python, or of another version
        return
    names = [name]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = [*(above if node.level else []), *(node.module or "").split(".")]
            source = ".".join(part for part in parts if part)
            names += (f"{source}.{alias.name}" for alias in node.names)
    for one in names:
        parts = one.split(".")
        yield from (".".join(parts[: length + 1]) for length in range(len(parts)))


def _reached(module: ModuleType, what: str) -> dict[str, Path]:
    """The module and everything that it imports from the same place, directly or not."""
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise InputError(
            f"{what} is defined in {module.__name__}, which has no source file, so its "
            "results cannot be cached; move it to a .py file"
        )
    path = Path(file).absolute()
    name = path.stem if module.__name__ == "__main__" else module.__name__
    root = path.parents[name.count(".") + (path.name == "__init__.py")]
    only = name.partition(".")[0] if _INSTALLED & set(path.parts) else None
    found, waiting = {name: path}, [name]
    while waiting:
        importing = waiting.pop()
        for part in _imports_of(importing, found[importing]):
            top, base = part.partition(".")[0], root.joinpath(*part.split("."))
            if part in found or top in _OURS or only not in (None, top):
                continue
            for source in (base / "__init__.py", base.with_name(f"{base.name}.py")):
                if source.is_file():
                    found[part] = source
                    waiting.append(part)
                    break
    return found
