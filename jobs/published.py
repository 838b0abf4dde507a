"""What papers print for a setting, from `published.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

from tango_core.compressors import METHODS, build_method

# Benchmark -> column -> accuracy in [0, 1].
Scores = Mapping[str, Mapping[str, float]]

# The release merges tokens into misplaced slots; its printed numbers may be with or without.
_FREE_OPTIONS = ("inner", "legacy_writeback")


def source() -> str:
    """Where the numbers are printed."""
    return str(_content()["source"])


def published_scores(cell: Mapping[str, Any]) -> Scores:
    """Published accuracies for the setting of a cell; empty if there are none.

    A cell matches if model, frames, method, retention and protocol are equal (frames and protocol
    may be unknown), all options have their defaults and a step inside the language model is the
    published one.

    Args:
        cell: A flat summary with `model` and `num_frames`.
    """
    if (cell.get("protocol") or _content()["protocol"]) != _content()["protocol"]:
        return {}
    for row in _content()["rows"]:
        if (
            cell["model"] == row["model"]
            and cell.get("num_frames") in (None, row["num_frames"])
            and cell["method"] == row["method"]
            and abs(cell["retention_requested"] - row.get("retention", 1.0)) < 1e-9
            and _inner_name(cell) == row.get("inner")
            and _has_default_options(cell)
        ):
            return {
                benchmark: {column: score / 100 for column, score in columns.items()}
                for benchmark, columns in row["scores"].items()
            }
    return {}


@lru_cache(maxsize=1)
def _content() -> dict[str, Any]:
    """The file."""
    text = (files("jobs") / "published.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def _inner_name(cell: Mapping[str, Any]) -> str | None:
    """Name of the step inside the language model."""
    inner = (cell["options"] or {}).get("inner")
    return inner["name"] if inner else None


def _has_default_options(cell: Mapping[str, Any]) -> bool:
    """Whether every option is the method's own, so that an ablation is not taken for it."""
    if cell["method"] not in METHODS:
        return False
    retention = {} if cell["method"] == "full" else {"retention": cell["retention_requested"]}
    defaults = build_method(cell["method"], **retention).options
    return all(
        name in _FREE_OPTIONS or defaults.get(name) == value
        for name, value in (cell["options"] or {}).items()
    )
