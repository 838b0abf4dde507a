"""Whether a loaded module still equals its source file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType


def stamp_of(path: Path) -> tuple[int, int]:
    """Size and modification time of a file: they differ after it was saved."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def is_as_loaded(module: ModuleType, path: Path) -> bool:
    """Whether the functions and the literal constants of a module are those of its source file.

    What a module computes at its top level is not looked at. Nothing is run.

    Args:
        module: Imported, from this file.
        path: The file.
    """
    source = path.read_bytes()
    try:
        known = set(_codes(compile(source, str(path), "exec", dont_inherit=True)))
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # what was imported was Python
        return False
    if any(code not in known for code in _loaded(module)):
        return False
    return all(
        name in vars(module) and _equal(vars(module)[name], value)
        for name, value in _constants(tree)
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _loaded(module: ModuleType) -> Iterator[CodeType]:
    """The code of the functions and methods that a module defines in its file."""
    waiting = list(vars(module).values())
    while waiting:
        found = waiting.pop()
        if getattr(found, "__module__", module.__name__) != module.__name__:
            continue
        if isinstance(found, type):
            waiting += [
                part for part in vars(found).values() if not isinstance(part, type) or part != found
            ]
        elif isinstance(found, property):
            waiting += [part for part in (found.fget, found.fset, found.fdel) if part]
        elif callable(found) or isinstance(found, staticmethod | classmethod):
            inner = inspect.unwrap(getattr(found, "__func__", found))
            # What a decorator generated, such as the methods of a dataclass, has no file.
            if isinstance(inner, FunctionType) and inner.__code__.co_filename == module.__file__:
                yield inner.__code__


def _constants(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Names that the top level of a module binds once, to literals."""
    bound: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name):
                bound.setdefault(target.id, []).append(getattr(node, "value", target))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if len(bound[name]) == 1:
                try:
                    value = ast.literal_eval(statement.value)
                except (ValueError, TypeError, MemoryError, RecursionError):
                    continue
                if not isinstance(value, list | dict | set):  # may be filled since
                    yield name, value


def _equal(one: object, other: object) -> bool:
    """Whether two constants are the same, of one type."""
    return type(one) is type(other) and repr(one) == repr(other)
