"""Which sources of shipped methods differ from the released ones.

`released.json` beside this file has the digest of every source that decides the tokens of shipped
methods. As long as all files are as they were released, a method is known by its name, its options
and its version. In a checkout where one of them was edited, the methods that use it are known by
the digest of their sources as well, so that they never meet tokens of the released code.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tango_core.errors import InputError
from tango_core.imports import file_of, imports_of
from tango_core.loaded_code import stamp_of
from tango_core.outside_code import is_outside, source_digest, source_files

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("released.json")
# Code that decides tokens. Steps inside the language model act through the share kept before it,
# which is in the identity; the table of methods imports all of them.
_FOLLOWED = ("tango_core.combination", "tango_core.ops", "tango_core.compressors")
_LEFT_OUT = (
    "tango_core.compressors.__init__",
    "tango_core.compressors.contract",
    "tango_core.compressors.in_llm",
    "tango_core.compressors.released",
)


def edited_digest(cls: type) -> str | None:
    """Digest of a method's sources in this package, if they are not the released ones.

    Args:
        cls: A shipped method, or one from outside that derives from shipped classes or imports
            their arithmetic.

    Returns:
        The first 16 hexadecimal digits of a SHA-256, or `None` if all is as released.
    """
    if not edited_files():  # nothing to look for: no source has to be parsed
        return None
    return _edited_digest(cls)


def pruner_digest(cls: type) -> str:
    """The first 16 hexadecimal digits for the sources of a method inside the language model.

    It is no part of the identity of cached tokens, which are there before such a method runs.

    Args:
        cls: Its class, shipped or from outside.

    Raises:
        ValueError: If one from outside was edited since it was imported.
    """
    files = sorted((PACKAGE / "compressors/in_llm").glob("*.py"))
    lines = [f"{file.name} {digest_of(file)}" for file in files]
    if is_outside(cls):  # it may derive from a shipped one
        lines.append(source_digest(cls))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def raise_if_saved() -> None:
    """Refuse sources that were saved since this module was imported, right before the methods.

    What they hold now is not what runs, and what runs cannot be told from them.

    Raises:
        ValueError: In one line that names the first of them.
    """
    for file, stamp in _IMPORTED.items():
        if not file.is_file() or stamp_of(file) != stamp:
            raise InputError(
                f"{file} has changed on disk since it was imported, so results of methods cannot "
                "be cached: restart the process"
            )


@cache
def edited_files() -> frozenset[str]:
    """Paths below the package of followed files that differ from `released.json`.

    They are looked at once per process, as modules are imported once.

    Raises:
        ValueError: If one was saved since it was imported.
    """
    raise_if_saved()
    released = json.loads(TABLE.read_text())
    found = current_digests()
    # A file that is missing decides nothing; whoever imported it was edited.
    edited = frozenset(path for path in found if found[path] != released.get(path))
    if edited:
        logger.info(
            "sources of methods differ from the released ones: %s; methods that use them have "
            "caches of their own",
            ", ".join(sorted(edited)),
        )
    return edited


def current_digests() -> dict[str, str]:
    """Path below the package -> digest, of all files that decide tokens of shipped methods."""
    return {file.relative_to(PACKAGE).as_posix(): digest_of(file) for file in _followed_files()}


def _followed_files() -> Iterator[Path]:
    """All files that decide tokens of shipped methods."""
    files = [PACKAGE / "combination.py"]
    for folder in ("compressors", "ops"):
        files += (PACKAGE / folder).rglob("*.py")
    return (file for file in sorted(files) if _is_followed(_module(file.relative_to(PACKAGE))))


def digest_of(file: Path) -> str:
    """The first 16 hexadecimal digits of a text file's SHA-256; line endings do not count."""
    content = file.read_bytes().replace(b"\r\n", b"\n")
    return hashlib.sha256(content).hexdigest()[:16]


def sources_of(cls: type) -> dict[str, Path]:
    """Path below the package -> file, of what decides the tokens of a method."""
    waiting = [base.__module__ for base in inspect.getmro(cls) if not is_outside(base)]
    if is_outside(cls):
        waiting += (
            name for module, path in source_files(cls).items() for name in imports_of(module, path)
        )
    found: dict[str, Path] = {}
    while waiting:
        for module, file in _files_of(waiting.pop()):
            path = file.relative_to(PACKAGE).as_posix()
            if path not in found and _is_followed(_module(Path(path))):
                found[path] = file
                waiting += imports_of(module, file)
    return found


@cache
def _edited_digest(cls: type) -> str | None:
    """As `edited_digest`, where something was edited."""
    sources = sources_of(cls)
    if not sources.keys() & edited_files():
        return None
    raise_if_saved()
    lines = [f"{path} {digest_of(file)}" for path, file in sorted(sources.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _files_of(name: str) -> Iterator[tuple[str, Path]]:
    """The module of a dotted name, or the one that the name is imported from."""
    for module in (name, name.rpartition(".")[0]):
        if module.startswith("tango_core."):
            file = file_of(PACKAGE.parent, module)
            if file is not None:
                yield module, file
                return


def _is_followed(module: str) -> bool:
    """Whether a module may decide tokens."""
    return _is_in(module, _FOLLOWED) and not _is_in(module, _LEFT_OUT)


def _is_in(module: str, names: tuple[str, ...]) -> bool:
    """Whether a module is one of these, or in a package that is."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _module(path: Path) -> str:
    """Dotted name of a file below the package; a package's own ends with `__init__`."""
    return ".".join(("tango_core", *path.with_suffix("").parts))


_IMPORTED = {file: stamp_of(file) for file in _followed_files()}
