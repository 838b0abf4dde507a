"""The methods of a recipe: expand lists of values, name cells, add controls."""

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
    """Format an option's value for the name of a cell."""
    return "+".join(str(v) for v in value.values()) if isinstance(value, dict) else str(value)


def expand_method(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Expand an entry of a recipe into the options of its methods.

    An option with a list of values gives one method per value; several lists give one method per
    combination.

    Raises:
        RecipeError: If the entry has no name, or an option is an empty list.
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


# Controls that accept a retention; a test checks that these and `block` are all controls.
AT_A_RETENTION: tuple[Mapping[str, Any], ...] = (
    {"name": "random"},
    {"name": "uniform"},
    {"name": "fewer_frames"},
    {"name": "pool_time"},
    {"name": "pool_space", "budget": "exact"},
)
# `block` keeps 1 / factor^2 of the tokens; larger factors match no usual retention better.
_FACTORS = (2, 3, 4)
_NEAR = 0.005


def control_methods(methods: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The control methods at every retention of the given methods.

    Args:
        methods: Options of every method, with `name`; lists of values expanded.

    Returns:
        Options of the controls that are not among `methods`, ordered by retention.
    """
    given = [dict(options) for options in methods]
    retentions = {
        float(options["retention"])
        for options in given
        if isinstance(options.get("retention"), int | float) and options["retention"] < 1
    }
    added: list[dict[str, Any]] = []
    for retention in sorted(retentions):
        added += [{**control, "retention": retention} for control in AT_A_RETENTION]
        added += [
            {"name": "block", "factor": factor}
            for factor in _FACTORS
            if abs(1 / factor**2 - retention) < _NEAR
        ]
    return [options for options in added if options not in given]
