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


@cache
def announced(kind: Kind) -> Mapping[str, EntryPoint]:
    """Entry points of all installed packages, by name; their group is `tango_video.<kind>s`."""
    return {point.name: point for point in entry_points(group=f"tango_video.{kind}s")}


def is_reference(name: str) -> bool:
    """Whether a name has the form `my_package.my_module:MyMethod`."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), attribute))


def short_name(name: str) -> str:
    """Short form of a name, for display and for names of directories.

    `my_package.my_module:MyMethod` becomes `MyMethod`; names of this package are not changed.
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
            f"or name one of your own as my_package.my_module:My{kind.title()}"
        )
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    return _imported(setting, name, lambda: getattr(import_module(module), attribute))


def _imported(setting: str, name: str, load: Callable[[], Any]) -> Any:
    """Call `load` and convert every exception to one with a one-line message.

    Raises:
        ValueError: If `load` fails; code of other packages may raise any exception.
    """
    module = name.partition(":")[0]
    try:
        return load()
    except ModuleNotFoundError as error:
        raise InputError(
            f"{setting} {name!r}: {error}; install the package, or start in the directory that "
            f"holds {module.partition('.')[0]}"
        ) from error
    except Exception as error:
        # Last executed line of the user's module; the text of a `SyntaxError` has its own line.
        file = f"{module.rpartition('.')[2]}.py"
        frames = traceback.extract_tb(error.__traceback__)
        own = {frame.filename for frame in frames if os.path.basename(frame.filename) == file}
        line = last_line_in(error, own)[0]
        where = f" ({line})" if line else ""
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{setting} {name!r} cannot be loaded{where}: {reason}") from error


def last_line_in(error: Exception, files: Collection[str]) -> tuple[str, bool]:
    """Find the last executed line of given files in the traceback of an exception.

    Args:
        error: Caught exception.
        files: File names as in `traceback.FrameSummary.filename`.

    Returns:
        `my_module.py, line 3`, or "" if the traceback has no line of these files; and whether that
        line itself raised the exception.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in files]
    if not own:
        return "", False
    return f"{os.path.basename(own[-1].filename)}, line {own[-1].lineno}", own[-1] is frames[-1]
