"""What of a recipe decides the results of a job: what must be equal to continue or merge runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A run may be continued with other workers and other time limits; the rest decides its results.
_NOT_COMPUTED = ("pools", "decode", "executor", "max_failures", "infeasible")


def computed_by(content: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved recipe, as read from YAML, that decides results."""
    decode, model = content.get("decode"), content.get("model")
    kept = {key: value for key, value in content.items() if key not in _NOT_COMPUTED}
    if isinstance(model, dict):  # an option that is not set may be newer than the run
        kept["model"] = {key: value for key, value in model.items() if value is not None}
    return {**kept, "decode": decode.get("decoder") if isinstance(decode, dict) else None}
