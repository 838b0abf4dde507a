"""Options of a method: which exist, what they may be, and errors that say what to write instead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from tango_core.errors import InputError
from tango_core.wrong_options import as_kind, raise_if_missing, raise_if_unknown


def option_names(cls: type) -> tuple[str, ...]:
    """Names of the options of a method class, in the order of its fields."""
    return tuple(option.name for option in fields(cls) if option.init)


def checked_options(method: str, cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check `options` against the fields of `cls` and return them in the fields' own types.

    Integers are accepted where a fraction is expected and become floats, so that equal settings
    have equal identities.

    Args:
        method: Name to use in messages.
        cls: A frozen dataclass whose fields are the options.
        options: What the user wrote.

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
        name: as_kind(f"method {method!r}: {name}", value, hints[name])
        for name, value in options.items()
    }


def raise_if_outside(method: object, low: float, high: float, *names: str) -> None:
    """Refuse options of a method that are not in [low, high]; `None` is none of them."""
    for name in names:
        value = getattr(method, name)
        if value is not None and not low <= value <= high:
            raise InputError(f"{name} must be in [{low}, {high}], got {value}")


def raise_if_below(method: object, least: float, *names: str) -> None:
    """Refuse options of a method that are smaller than `least`, or infinite."""
    for name in names:
        value = getattr(method, name)
        if not least <= value < math.inf:
            raise InputError(f"{name} must be {least} or larger, got {value}")
