"""One-line errors for names that are none of the allowed ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def check_name(setting: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse a name that is not allowed, and say which one was probably meant.

    Args:
        setting: The recipe key, e.g. `"benchmark.name"`.
        value: What the user wrote.
        allowed: All valid names.

    Raises:
        ValueError: In one line: the setting, the value, the nearest name if any, all names.
    """
    names = sorted(allowed)
    if value in names:
        return
    near = get_close_matches(str(value).lower(), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown {setting} {value!r}; {hint}choose one of: {', '.join(names)}")
