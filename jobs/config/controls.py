"""The controls that `tango sweep --controls` adds: cheaper ways to have as many tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Methods that a retention can be asked of; a test holds that these and `block` are all controls.
AT_A_RETENTION: tuple[Mapping[str, Any], ...] = (
    {"name": "random"},
    {"name": "uniform"},
    {"name": "fewer_frames"},
    {"name": "pool_time"},
    {"name": "pool_space", "budget": "exact"},
)
# Blocks of a side of `factor` tokens keep 1 / factor^2; larger ones are no nearer to any retention.
_FACTORS = (2, 3, 4)
_NEAR = 0.005


def control_methods(methods: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The controls at every retention that some methods have.

    Args:
        methods: Options of every method, with `name`; lists of values expanded.

    Returns:
        Options of the controls, retention by retention; none that is among the methods.
    """
    given = [dict(options) for options in methods]
    retentions = {
        float(options["retention"])
        for options in given
        if isinstance(options.get("retention"), int | float) and options["retention"] < 1
    }
    added: list[dict[str, Any]] = []
    for retention in sorted(retentions):
        added += [
            {"name": control["name"], "retention": retention}
            | {key: value for key, value in control.items() if key != "name"}
            for control in AT_A_RETENTION
        ]
        added += [
            {"name": "block", "factor": factor}
            for factor in _FACTORS
            if abs(1 / factor**2 - retention) < _NEAR
        ]
    return [options for options in added if options not in given]
