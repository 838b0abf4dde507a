"""Error messages for wrong options of methods, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from tango_core.errors import InputError


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` or nothing."""
    close = get_close_matches(name, list(allowed), n=1)
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
