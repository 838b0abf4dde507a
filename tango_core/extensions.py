"""Methods, models and benchmarks from outside this package, by name.

A name in a recipe or in `build_method` is looked up in three places, in this order: the table of
this package, the entry points of installed packages, and, if it has the form
`my_package.my_module:MyMethod`, the module itself.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from tango_core.errors import InputError

Kind = Literal["method", "model", "benchmark"]


def group_of(kind: Kind) -> str:
    """The entry-point group in which packages register extensions of one kind."""
    return f"tango_video.{kind}s"


@cache
def announced(kind: Kind) -> Mapping[str, EntryPoint]:
    """Entry points of all installed packages, by name."""
    return {point.name: point for point in entry_points(group=group_of(kind))}


def is_reference(name: str) -> bool:
    """Whether a name has the form `my_package.my_module:MyMethod`."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), attribute))


def short_name(name: str) -> str:
    """Short form of a name, for display and for names of directories.

    `my_package.my_module:MyMethod` is `MyMethod`. Names of this package are as they are.
    """
    shown = name.partition(":")[2] if is_reference(name) else name
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", shown)


def load_extension(kind: Kind, setting: str, name: str, known: Iterable[str]) -> Any:
    """Import what an entry point or a reference names.

    The working directory is searched as well, after everything that is installed.

    Args:
        kind: Kind of extension.
        setting: Where the name was written, e.g. `"method.name"`, for the error.
        name: Name of an entry point, or `module:attribute`.
        known: Names of this package's own table, for the error.

    Raises:
        ValueError: If there is no such name, or it cannot be imported, in one line.
    """
    if name in announced(kind):
        return _imported(setting, name, announced(kind)[name].load)
    if not is_reference(name):
        names = [*known, *announced(kind)]
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"unknown {setting} {name!r}; {meant}choose one of: {', '.join(names)}; "
            f"or name one of your own as my_package.my_module:{_EXAMPLES[kind]}"
        )
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    return _imported(setting, name, lambda: getattr(import_module(module), attribute))


def _imported(setting: str, name: str, load: Callable[[], Any]) -> Any:
    """What `load` imports.

    Raises:
        ValueError: If the import fails; running foreign code can raise anything.
    """
    module = name.partition(":")[0]
    try:
        return load()
    except ModuleNotFoundError as error:
        # The user's own module is missing, or one that it imports.
        own = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        remedy = (
            f"install the package, or start in the directory that holds {module.partition('.')[0]}"
            if own
            else f"install {error.name}"
        )
        raise InputError(f"{setting} {name!r}: {error}; {remedy}") from error
    except Exception as error:
        reason = " ".join(str(error).split())
        where = f" ({_line_of(error, module)})" if _line_of(error, module) else ""
        raise InputError(
            f"{setting} {name!r} cannot be loaded{where}: {type(error).__name__}: {reason}"
        ) from error


def _line_of(error: Exception, module: str) -> str:
    """`my_module.py, line 3`: the last line of the user's module that ran; "" if none did."""
    if isinstance(error, SyntaxError):
        return ""  # its text names file and line
    file = f"{module.rpartition('.')[2]}.py"
    frames = traceback.extract_tb(error.__traceback__)
    own = {frame.filename for frame in frames if os.path.basename(frame.filename) == file}
    return last_line_in(error, own)[0]


def last_line_in(error: Exception, files: Collection[str]) -> tuple[str, bool]:
    """The last line of some files that ran before an exception was raised.

    Args:
        error: That was caught.
        files: Paths as they stand in a traceback.

    Returns:
        `my_module.py, line 3`, or "" if none did; and whether that line itself raised it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in files]
    if not own:
        return "", False
    return f"{os.path.basename(own[-1].filename)}, line {own[-1].lineno}", own[-1] is frames[-1]


_EXAMPLES: dict[Kind, str] = {
    "method": "MyMethod",
    "model": "my_model",
    "benchmark": "MyBenchmark",
}
