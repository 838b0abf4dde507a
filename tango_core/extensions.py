"""Methods, models and benchmarks from outside this package, by name.

A name in a recipe or in `build_method` is looked up in three places, in this order: the table of
this package, the entry points of installed packages, and, if it has the form
`my_package.my_module:MyMethod`, the module itself.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

Kind = Literal["method", "model", "benchmark"]


def group_of(kind: Kind) -> str:
    """The entry-point group in which packages announce things of one kind."""
    return f"tango_video.{kind}s"


@cache
def announced(kind: Kind) -> Mapping[str, EntryPoint]:
    """Entry points of all installed packages, by name."""
    return {point.name: point for point in entry_points(group=group_of(kind))}


def is_reference(name: str) -> bool:
    """Whether a name says itself where it is defined: `my_package.my_module:MyMethod`."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), attribute))


def load_extension(kind: Kind, setting: str, name: str, known: Iterable[str]) -> Any:
    """Import what an entry point or a reference names.

    The working directory is searched as well, after everything that is installed.

    Args:
        kind: What is looked for.
        setting: Where the name was written, e.g. `"method.name"`, for the error.
        name: Name of an entry point, or `module:attribute`.
        known: Names of this package's own table, for the error.

    Raises:
        ValueError: If there is no such name, or it cannot be imported, in one line.
    """
    if name in announced(kind):
        try:
            return announced(kind)[name].load()
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{setting} {name!r} cannot be loaded: {error}") from error
    if not is_reference(name):
        names = [*known, *announced(kind)]
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"unknown {setting} {name!r}; {meant}choose one of: {', '.join(names)}; "
            f"or name one of your own as my_package.my_module:{_EXAMPLES[kind]}"
        )
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{setting} {name!r}: {error}; install the package, or start in the directory that "
            f"holds {module.split('.')[0]}"
        ) from error
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{setting} {name!r} cannot be loaded: {error}") from error


_EXAMPLES: dict[Kind, str] = {
    "method": "MyMethod",
    "model": "my_model",
    "benchmark": "MyBenchmark",
}
