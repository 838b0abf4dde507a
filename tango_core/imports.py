"""Modules that a module imports, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def imports_of(name: str, path: Path) -> Iterator[str]:
    """Absolute names of everything that a module imports, inside functions too, and its parents."""
    yield name
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # not Python, or of another version
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = [*(above if node.level else []), *(node.module or "").split(".")]
            source = ".".join(part for part in parts if part)
            yield from (f"{source}.{alias.name}" for alias in node.names)


def with_parents(name: str) -> Iterator[str]:
    """`a`, `a.b`, `a.b.c` for `a.b.c`: importing the last one runs them all."""
    parts = name.split(".")
    return (".".join(parts[: length + 1]) for length in range(len(parts)))


def file_of(root: Path, name: str) -> Path | None:
    """The file of a module below a directory of `sys.path`."""
    base = root.joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
        if path.is_file():
            return path
    return None
