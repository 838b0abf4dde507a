"""Sizes, ages and numbers of clips as users write and read them."""

from __future__ import annotations

import re
from datetime import timedelta

from pydantic import ByteSize, TypeAdapter

from tango_core.errors import InputError

_AGE = {"h": "hours", "d": "days", "w": "weeks"}


def human_bytes(num_bytes: float) -> str:
    """A size with up to three digits and a unit in powers of 1000: `"31.4 kB"`."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.{0 if unit == 'B' or num_bytes >= 99.95 else 1}f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def human_age(seconds: float) -> str:
    """A duration in its largest unit: `"45 s"`, `"12 min"`, `"3 h"`, `"5 d"`."""
    for unit, size, limit in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds / size < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def parse_bytes(text: str, option: str) -> int:
    """Bytes of `"50GB"`, `"1.5 TiB"` or `"1000"`.

    Args:
        text: A number, with or without a unit.
        option: The option that the user set, for the message.

    Raises:
        InputError: If the text is not a size.
    """
    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{option} {text!r} is not a size; write a number and a unit, such as 50GB"
        ) from error


def clip_limit(value: object) -> int | float | None:
    """Check a `limit`: a number of clips, a share of a benchmark's clips, or `None`.

    Raises:
        InputError: If it is neither.
    """
    if value is None or (type(value) is int and value >= 1):
        return value
    if type(value) is float and 0 < value < 1:
        return value
    raise InputError(
        "must be a number of clips, such as 100, or a share of them below 1, such as 0.1"
    )


def parse_age(text: str, option: str) -> timedelta:
    """Age of `"36h"`, `"30d"` or `"2w"`.

    Args:
        text: A number and a unit.
        option: The option that the user set, for the message.

    Raises:
        InputError: If the text is not an age.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*([hdw])", text.strip().lower())
    if found is None:
        raise InputError(
            f"{option} {text!r} is not an age; write hours, days or weeks, such as 36h, 30d or 2w"
        )
    return timedelta(**{_AGE[found[2]]: float(found[1])})
