"""How a recipe writes its methods: lists of values, and the names of what they stand for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from jobs.config.overrides import RecipeError
from tango_core.extensions import short_name


def cell_name(options: Mapping[str, Any]) -> str:
    """Readable name of one method with its options: `tango r=0.1 alpha=2`."""
    parts = [short_name(str(options["name"]))]
    if "retention" in options:
        parts.append(f"r={options['retention']}")
    parts += [f"{k}={_short(v)}" for k, v in options.items() if k not in ("name", "retention")]
    return " ".join(parts)


def _short(value: Any) -> str:
    """An option's value in a cell's name."""
    return "+".join(str(v) for v in value.values()) if isinstance(value, dict) else str(value)


def spelled_out(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One set of options per combination of the values that are lists.

    Raises:
        RecipeError: If the entry has no name.
    """
    if not isinstance(entry.get("name"), str):
        raise RecipeError(
            f"every method needs a name, e.g. {{name: tango, retention: 0.1}}; got {dict(entry)}"
        )
    values = [value if isinstance(value, list) else [value] for value in entry.values()]
    return [
        dict(zip(entry, combination, strict=True)) for combination in itertools.product(*values)
    ]
