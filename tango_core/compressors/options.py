"""Options of a method: their names, types and ranges, and error messages for wrong values."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from tango_core.errors import InputError

LARGEST = 2**63 - 1
"""Largest integer of a tensor and of a random seed."""

# Types in error messages.
_KINDS: dict[type, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    tuple: "a list",
}


class Range(NamedTuple):
    """Values that a setting may have.

    Attributes:
        text: Which, for error messages.
        holds: Whether a value is one of them.
    """

    text: str
    holds: Callable[[float], bool]


# Types of options, which name their ranges.
_SHARE = Range("in (0, 1]", lambda value: 0 < value <= 1)
Share = Annotated[float, _SHARE]
Ratio = Annotated[float, Range("in [0, 1]", lambda value: 0 <= value <= 1)]
Cosine = Annotated[float, Range("in [-1, 1]", lambda value: -1 <= value <= 1)]
_FROM_0 = Range("0 or larger", lambda value: 0 <= value < math.inf)
_FROM_1 = Range("1 or larger", lambda value: 1 <= value < math.inf)
Index = Annotated[int, _FROM_0]
Strength = Annotated[float, _FROM_0]
Count = Annotated[int, _FROM_1]
Factor = Annotated[float, _FROM_1]


def option_names(cls: type) -> tuple[str, ...]:
    """Names of the options of a method class, in the order of its fields."""
    return tuple(option.name for option in fields(cls) if option.init)


def checked_options(method: str, cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check `options` against the fields of `cls` and return them in the fields' own types.

    Integers are accepted where a fraction is expected and become floats, so that equal settings
    have equal identities.

    Args:
        method: Name for error messages.
        cls: A frozen dataclass whose fields are the options.
        options: Options from the recipe.

    Raises:
        ValueError: For an unknown option, a missing one, or a value of the wrong kind.
    """
    allowed = option_names(cls)
    for name in options:
        if name not in allowed:
            raise InputError(
                f"method {method!r} has no option {name!r}{suggestion(name, allowed)}; "
                f"its options are: {', '.join(allowed) or 'none'}"
            )
    missing = [
        option.name
        for option in fields(cls)
        if option.init
        and option.default is option.default_factory is MISSING
        and option.name not in options
    ]
    if missing:
        raise InputError(
            f"method {method!r} needs {', '.join(missing)}; add it, e.g. {missing[0]}=0.1"
        )
    try:
        hints = get_type_hints(cls)
    except NameError as error:  # a class from outside, imported under TYPE_CHECKING only
        raise InputError(
            f"method {method!r}: the types of its options cannot be read: {error}; "
            "import that name where the method runs too"
        ) from error
    return {
        name: _as_kind(f"method {method!r}: {name}", value, hints[name])
        for name, value in options.items()
    }


@cache
def _ranges(cls: type) -> dict[tuple[str, Range], None]:
    """Fields of a class and of its bases with the ranges in their annotations, as keys."""
    try:
        hints = [get_type_hints(base, include_extras=True) for base in cls.__mro__]
    except NameError:  # reported by `checked_options`
        return {}
    return {
        (name, note): None
        for own in hints
        for name, hint in own.items()
        for part in (hint, *get_args(hint))
        for note in getattr(part, "__metadata__", ())
        if isinstance(note, Range)
    }


def check_ranges(settings: Any) -> None:
    """Raise `ValueError` for a field whose value is not in its range; `None` is allowed."""
    for name, allowed in _ranges(type(settings)):  # type: ignore[arg-type]
        value = getattr(settings, name)
        if value is not None and not allowed.holds(value):
            is_percent = allowed is _SHARE and 1 < value <= 100
            hint = f"; write {value / 100:g} for {value:g} %" if is_percent else ""
            raise InputError(f"{name} must be {allowed.text}, got {value}{hint}")


def _as_kind(where: str, value: Any, kind: Any) -> Any:
    """Return `value` as `kind` (a type, a Literal, or a union with None), or raise."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        *others, last = (part for part in get_args(kind) if part is not type(None))
        for part in others:
            try:
                return _as_kind(where, value, part)
            except ValueError:
                continue
        return _as_kind(where, value, last)
    if origin is Literal:
        if value not in get_args(kind):
            raise InputError(
                f"{where} must be one of {', '.join(map(repr, get_args(kind)))}, got {value!r}"
            )
        return value
    expected = origin or kind
    if expected is tuple and isinstance(value, list | tuple):
        return tuple(_as_kind(where, part, get_args(kind)[0]) for part in value)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wrong_bool = isinstance(value, bool) and expected is not bool
    if isinstance(expected, type) and (wrong_bool or not isinstance(value, expected)):
        wanted = _KINDS.get(expected, f"a {expected.__name__.lower()} of settings")
        raise InputError(f"{where} must be {wanted}, got {value!r}")
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise InputError(f"{where} must be at most {LARGEST}, got {value}")
    return value


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` or nothing."""
    close = difflib.get_close_matches(name, list(allowed), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
