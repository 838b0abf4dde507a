"""Sizes, ages and numbers of clips as users write and read them."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from tango_core.errors import InputError

_AGE = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_SIZE = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


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
        ValueError: If the text is not a size, or a larger one than a float holds.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", text.strip().upper())
    size = math.inf
    if found is not None and not (found[3] and not found[2]):
        size = float(found[1]) * (_BINARY if found[3] else _SIZE)[found[2]]
    if math.isinf(size):
        raise InputError(
            f"{option} {text!r} is not a size; write a number and a unit, such as 50GB"
        )
    return int(size)


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
        ValueError: If the text is not an age, or too long for a `timedelta`.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([hdw])", text.strip().lower())
    if found is None or (age := _timedelta(float(found[1]), found[2])) is None:
        raise InputError(
            f"{option} {text!r} is not an age; write hours, days or weeks, such as 36h, 30d or 2w"
        )
    return age


def _timedelta(number: float, unit: str) -> timedelta | None:
    """`None` if it is longer than a `timedelta` can be."""
    try:
        return number * _AGE[unit]
    except OverflowError:
        return None
