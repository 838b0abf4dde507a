"""Nested settings by dotted keys, as `--set` names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values: `{"model": {"name": "tiny"}}` -> `model.name`, `"tiny"`."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
