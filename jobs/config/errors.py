"""Errors in recipes: one line that names the key, the value and what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import ValidationError

from jobs.config.sections import flat_model
from tango_core.errors import InputError

# Parts that pydantic adds to an error's location: class names and members of unions.
_TYPE = re.compile(r"[A-Z]|int$|tuple\[|literal\[")


# Error types whose pydantic message names Python types or a regular expression.
_WRONG_FORM = {"dict_type", "dataclass_type", "tuple_type", "string_pattern_mismatch"}
_UNKNOWN = {"unexpected_keyword_argument", "extra_forbidden"}
_MISSING = {"missing", "missing_argument"}
_FORMS = {
    "benchmark": "one mapping such as {name: shapes}",
    "benchmarks": "a list such as [{name: shapes}]",
    "model": "a mapping such as {name: tiny}",
    "method": "a mapping such as {name: tango, retention: 0.1}",
    "methods": "a list such as [{name: full}, {name: tango, retention: 0.1}]",
    "shard": "i/n with 0 <= i < n, such as 0/8",
}


def shortened(text: str, length: int = 80) -> str:
    """Truncate a long user-written string for a message."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


class RecipeError(InputError):
    """Invalid recipe or `--set`; the message is one line."""


def explain(error: ValidationError, schema: type) -> str:
    """Describe the first error that pydantic found, in one line with what is allowed.

    Args:
        error: From checking a recipe.
        schema: The dataclass that the recipe was checked against.
    """
    first = _first_of(error)
    *above, last = map(str, first["loc"] or ("",))
    unknown = first["type"] in _UNKNOWN
    location = [part for part in above if not _TYPE.match(part)]
    if unknown or not _TYPE.match(last):  # an unknown key may look like a type: `Model`
        location += [last] if first["loc"] else []
    key = ".".join(location)
    if unknown:
        allowed = _keys_at(schema, location[:-1])
        close = difflib.get_close_matches(location[-1], allowed, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"allowed here: {', '.join(allowed)}"
        return f"unknown key {key!r}; {hint}"
    if first["type"] in _MISSING:
        return f"key {key!r} is missing"
    if key in _FORMS and first["type"] in _WRONG_FORM:
        return f"{key}: must be {_FORMS[key]}, got {shortened(repr(first['input']))}"
    if above[:1] == ["methods"] and len(location) == 2 and first["type"] in _WRONG_FORM:
        return f"{key}: must be {_FORMS['method']}, got {shortened(repr(first['input']))}"
    message = first["msg"].removeprefix("Value error, ").split(" or an instance of ")[0]
    message = message[:1].lower() + message[1:]
    if isinstance(first.get("input"), (dict, list)) or not key:
        return f"{key}: {message}" if key else message
    return f"{key}: {message}, got {first['input']!r}"


def _first_of(error: ValidationError) -> Any:
    """The first error, but prefer an unknown key (maybe misspelled) to a missing one next to it."""
    first, *others = error.errors()
    beside = [
        one for one in others if one["type"] in _UNKNOWN and one["loc"][:-1] == first["loc"][:-1]
    ]
    return beside[0] if first["type"] in _MISSING and beside else first


def _keys_at(schema: type, location: Sequence[str]) -> list[str]:
    """Keys that are allowed in the section at `location`."""
    section: Any = schema
    for key in location:
        if not key.isdecimal():
            section = _dataclass_in(get_type_hints(section)[key])
    return list(flat_model({field.name: None for field in fields(section)}))


def _dataclass_in(hint: Any) -> Any:
    """The dataclass in a type such as `Section | None` or `tuple[Section, ...]`, or `None`."""
    if is_dataclass(hint):
        return hint
    return next((found for part in get_args(hint) if (found := _dataclass_in(part))), None)
