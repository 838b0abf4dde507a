"""Errors in recipes: one line that names the key, the value and what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from tango_core.errors import InputError

# Parts that pydantic adds to an error's location: class names and members of unions.
_TYPE = re.compile(r"[A-Z]|int$|tuple\[|literal\[")
_UNKNOWN = {"unexpected_keyword_argument", "extra_forbidden"}


class RecipeError(InputError):
    """Invalid recipe or `--set`; the message is one line."""


def explain(error: ValidationError, keys: Iterable[str]) -> str:
    """Describe the first error that pydantic found, in one line with what is allowed.

    An unknown key, which may be a misspelled one, comes before a missing one.

    Args:
        error: From checking a recipe.
        keys: All dotted keys of a recipe.
    """
    first: Any = min(error.errors(), key=lambda one: one["type"] not in _UNKNOWN)
    *above, last = map(str, first["loc"] or ("",))
    location = [part for part in above if not _TYPE.match(part)]
    if first["type"] in _UNKNOWN:
        section = re.sub(r"s\.\d+", "", "".join(f"{part}." for part in location))
        inside = [key.removeprefix(section) for key in keys if key.startswith(section)]
        allowed = list(dict.fromkeys(key.partition(".")[0] for key in inside))
        close = difflib.get_close_matches(last, allowed, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"allowed here: {', '.join(allowed)}"
        return f"unknown key {'.'.join([*location, last])!r}; {hint}"
    key = ".".join(location if _TYPE.match(last) else [*location, last])
    if first["type"] in ("missing", "missing_argument"):
        return f"key {key!r} is missing"
    message = first["msg"].removeprefix("Value error, ").split(" or an instance of ")[0]
    message = message[:1].lower() + message[1:]
    message = message.replace("tuple", "list").replace("dictionary", "mapping")
    given = "" if isinstance(first["input"], dict | list) else f", got {first['input']!r}"
    return f"{key}: {message}{given}" if key else message
