"""Options of a method: their names, types and ranges, and error messages for wrong values."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tango_core.errors import InputError

Ranges = Mapping[str, tuple[float, float]]
"""Option -> smallest and largest value; `math.inf` stands for no upper bound."""

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


def at_least(low: float) -> tuple[float, float]:
    """The range of an option without an upper bound."""
    return low, math.inf


def raise_if_outside(settings: object, ranges: Ranges) -> None:
    """Raise `ValueError` for a setting that is not finite or not in its range.

    `None` is allowed.
    """
    for name, (low, high) in ranges.items():
        value = getattr(settings, name)
        if value is not None and not (low <= value <= high and value < math.inf):
            allowed = f"in [{low}, {high}]" if high < math.inf else f"{low} or larger"
            raise InputError(f"{name} must be {allowed}, got {value}")


def check_ranges(method: Any) -> None:
    """Check `retention` and the options in `option_ranges` of a method's class and its bases."""
    raise_if_no_share("retention", method.retention)
    for cls in type(method).__mro__:
        raise_if_outside(method, vars(cls).get("option_ranges", {}))


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


def raise_if_no_share(name: str, value: float) -> None:
    """Refuse a share that is not in (0, 1]."""
    if not 0 < value <= 1:
        raise InputError(f"{name} must be in (0, 1], got {value}")
