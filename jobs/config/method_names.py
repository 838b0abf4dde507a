"""Names and options of the shipped methods, read from their source: importing them takes seconds.

Only what is written is known here: which methods there are, which options each has, and which of
these have a default. What a value may be is checked by the methods themselves.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = "tango_core.compressors"


@dataclass(frozen=True)
class MethodOptions:
    """The options of one method.

    Attributes:
        names: All of them, in their order.
        required: Those without a default.
    """

    names: tuple[str, ...]
    required: tuple[str, ...]


@cache
def shipped_methods() -> dict[str, MethodOptions]:
    """Name of every method of `METHODS` -> its options."""
    module = _parsed(_PACKAGE)
    imported = _imports(module)
    return {name: _options(imported[cls], cls) for name, cls in _table(module).items()}


def _table(module: ast.Module) -> dict[str, str]:
    """Keys of `METHODS` with the names of their classes."""
    for node in module.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "METHODS":
            assert isinstance(node.value, ast.Dict)
            keys = (ast.literal_eval(key) for key in node.value.keys if key)
            return dict(zip(keys, map(ast.unparse, node.value.values), strict=True))
    raise LookupError(f"{_PACKAGE} has no table METHODS")


def _options(module_name: str, class_name: str) -> MethodOptions:
    """Fields of a dataclass, those of its bases first; one that is redefined keeps its place."""
    module = _parsed(module_name)
    imported = _imports(module)
    found = next(
        node for node in module.body if isinstance(node, ast.ClassDef) and node.name == class_name
    )
    names: dict[str, bool] = {}  # option -> has no default
    for base in map(ast.unparse, reversed(found.bases)):  # as dataclasses go through them
        where = imported.get(base, module_name)
        if where.startswith(_PACKAGE):
            inherited = _options(where, base)
            names |= {name: name in inherited.required for name in inherited.names}
    is_dataclass = any("dataclass" in ast.unparse(mark) for mark in found.decorator_list)
    for node in found.body if is_dataclass else ():
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            names[ast.unparse(node.target)] = node.value is None
            if node.value is not None and "init=False" in ast.unparse(node.value):
                del names[ast.unparse(node.target)]
    required = tuple(name for name, is_required in names.items() if is_required)
    return MethodOptions(tuple(names), required)


def _imports(module: ast.Module) -> dict[str, str]:
    """Names that a module imports -> the module they come from."""
    return {
        alias.asname or alias.name: node.module
        for node in module.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


@cache
def _parsed(module_name: str) -> ast.Module:
    """The source of a module, which is not imported; nor is the package it is in."""
    top, _, rest = module_name.partition(".")
    spec = find_spec(top)
    assert spec is not None
    assert spec.origin is not None
    place = Path(spec.origin).parent.joinpath(*rest.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
