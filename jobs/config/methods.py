"""The methods of a recipe: entries with lists of values, and the names of cells."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
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


def raise_if_wrong_methods(methods: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Check names and options of the methods without a model.

    Args:
        methods: (cell name, options with `name`) pairs, as `Job.all_methods` has them.

    Raises:
        ValueError: If a name or an option is unknown, or a value is not allowed.
    """
    from tango_core.compressors import build_method  # it imports torch, reading a recipe does not

    for name, options in methods:
        for option in ("num_layers", "model"):
            if option in options:
                raise ValueError(f"method {name!r} has no option {option!r}; the model has it")
        try:
            build_method(**options)
        except TypeError as error:
            raise RecipeError(str(error)) from error
