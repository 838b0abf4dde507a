"""The methods of a recipe: entries with lists of values, and the names of cells."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from jobs.config.errors import RecipeError
from tango_core.extensions import short_name


def cell_name(options: Mapping[str, Any]) -> str:
    """Readable name of one method with its options: `tango r=0.1 alpha=2`."""
    parts = [short_name(str(options["name"]))]
    if "retention" in options:
        parts.append(f"r={options['retention']}")
    parts += [f"{k}={_text(v)}" for k, v in options.items() if k not in ("name", "retention")]
    return " ".join(parts)


def _text(value: Any) -> str:
    """An option's value as part of a cell's name."""
    return "+".join(str(v) for v in value.values()) if isinstance(value, dict) else str(value)


def expand_method(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of every method that an entry stands for.

    An option with a list of values stands for one method per value; several lists stand for one
    method per combination.

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
