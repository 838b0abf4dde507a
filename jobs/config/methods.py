"""The methods of a recipe: entries with lists of values, and the names of cells."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from jobs.config.errors import RecipeError
from jobs.config.method_names import shipped_methods
from tango_core.errors import InputError, UserError
from tango_core.extensions import announced, is_reference, load_extension, short_name
from tango_core.wrong_options import raise_if_missing, raise_if_no_share, raise_if_unknown

LARGEST = 2**63 - 1
"""Largest whole number of a tensor and of a random seed."""


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
        RecipeError: If the entry has no name, or an option a list without a value.
    """
    if not isinstance(entry.get("name"), str):
        raise RecipeError(
            f"every method needs a name, e.g. {{name: tango, retention: 0.1}}; got {dict(entry)}"
        )
    for option, value in entry.items():
        if value == []:
            raise RecipeError(
                f"method {entry['name']!r}: {option} is an empty list; give one value or several"
            )
    values = [value if isinstance(value, list) else [value] for value in entry.values()]
    return [
        dict(zip(entry, combination, strict=True)) for combination in itertools.product(*values)
    ]


def raise_if_unknown_methods(methods: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Check the names of methods and of their options, at once; those from outside are left out.

    Args:
        methods: As `raise_if_wrong_methods`.

    Raises:
        ValueError: If there is no such method or option, or no such share.
    """
    shipped = shipped_methods()
    for cell, options in methods:
        name = options["name"]
        if name not in shipped:
            if not is_reference(name) and name not in announced("method"):
                load_extension("method", "method", name, sorted(shipped))
            continue
        given = [key for key in options if key != "name"]
        if "num_layers" in given:
            raise InputError(f"method {cell!r} has no option 'num_layers'; the model has it")
        raise_if_unknown(name, given, shipped[name].names)
        raise_if_missing(name, given, shipped[name].required)
        raise_if_too_large(cell, options)
        retention = options.get("retention")
        if isinstance(retention, int | float) and not isinstance(retention, bool):
            try:
                raise_if_no_share("retention", float(retention))
            except ValueError as error:
                raise InputError(f"method {cell!r}: {error}") from error


def raise_if_too_large(cell: str, options: Mapping[str, Any]) -> None:
    """Refuse whole numbers that torch cannot hold.

    Raises:
        ValueError: In one line that names the option.
    """
    for option, value in options.items():
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise InputError(f"method {cell!r}: {option} must be at most {LARGEST}, got {value}")


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
                raise InputError(f"method {name!r} has no option {option!r}; the model has it")
        try:
            build_method(**options)
        except UserError as error:
            text = str(error)
            named = text if text.startswith(("method ", "unknown ")) else f"method {name!r}: {text}"
            raise RecipeError(named) from error
