"""Options of a method: their names, types and ranges, and error messages for wrong values."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tango_core.errors import InputError

LARGEST = 2**63 - 1
"""Largest integer of a tensor and of a random seed."""


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
    raise_if_unknown(method, options, allowed)
    required = [
        option.name
        for option in fields(cls)
        if option.init and option.default is MISSING and option.default_factory is MISSING
    ]
    raise_if_missing(method, options, required)
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


def raise_if_outside(method: object, low: float, high: float, *names: str) -> None:
    """Raise `ValueError` for options that are not in [low, high]; `None` is allowed."""
    for name in names:
        value = getattr(method, name)
        if value is not None and not low <= value <= high:
            raise InputError(f"{name} must be in [{low}, {high}], got {value}")


def raise_if_below(method: object, least: float, *names: str) -> None:
    """Raise `ValueError` for options that are smaller than `least`, or infinite."""
    for name in names:
        value = getattr(method, name)
        if not least <= value < math.inf:
            raise InputError(f"{name} must be {least} or larger, got {value}")


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
        raise InputError(f"{where} must be {_article(expected)}, got {value!r}")
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise InputError(f"{where} must be at most {LARGEST}, got {value}")
    return value


def _article(kind: type) -> str:
    """Description of a type for error messages."""
    words = {
        float: "a number",
        int: "a whole number",
        bool: "true or false",
        str: "a text",
        tuple: "a list",
    }
    return words.get(kind, f"a {kind.__name__.lower()} of settings")


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` or nothing."""
    close = difflib.get_close_matches(name, list(allowed), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def raise_if_unknown(method: str, names: Iterable[str], allowed: Sequence[str]) -> None:
    """Refuse options that a method does not have."""
    for name in names:
        if name not in allowed:
            listed = ", ".join(allowed) if allowed else "none"
            raise InputError(
                f"method {method!r} has no option {name!r}{suggestion(name, allowed)}; "
                f"its options are: {listed}"
            )


def raise_if_missing(method: str, names: Iterable[str], required: Iterable[str]) -> None:
    """Refuse to build a method without the options that have no default."""
    given = set(names)
    missing = [name for name in required if name not in given]
    if missing:
        raise InputError(
            f"method {method!r} needs {', '.join(missing)}; add it, e.g. {missing[0]}=0.1"
        )


def raise_if_no_share(name: str, value: float | str) -> None:
    """Refuse a share that is not in (0, 1]; a percentage is answered with the share it means."""
    if isinstance(value, str):
        number = value.strip().removesuffix("%").strip()
        percentage = value.strip().endswith("%") and number.replace(".", "", 1).isdigit()
        meant = f"; write {float(number) / 100:g}" if percentage else ""
        raise InputError(f"{name} must be a number in (0, 1], got {value!r}{meant}")
    if not 0 < value <= 1:
        meant = f"; write {value / 100:g} for {value:g} %" if 1 < value <= 100 else ""
        raise InputError(f"{name} must be in (0, 1], got {value}{meant}")
