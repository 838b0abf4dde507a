"""What papers print for a setting, from `published.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

from tango_core.benchmarks.protocols.versions import harness_of
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

    A cell matches if model, size, frames, method, retention and protocol are equal (size, frames
    and protocol may be unknown), all options have their defaults and a step inside the language
    model is the published one.

    Args:
        cell: A flat summary with `model`, `num_frames` and `decoder_shape`.
    """
    if not _same_protocol(cell) or not _same_size(cell):
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
                benchmark: {column: round(score / 100, 6) for column, score in columns.items()}
                for benchmark, columns in row["scores"].items()
            }
    return {}


def caveats(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """What keeps the cells from being compared with published numbers, one sentence each.

    Args:
        cells: As in `published_scores`.
    """
    sentences = [sentence for cell in cells if (sentence := _why_none(cell))]
    complete = _content()["questions"]
    fewest: dict[str, int] = {}
    for cell in cells:
        name, asked = str(cell["benchmark"]), int(cell["num_questions"])
        if name in complete and published_scores(cell):
            fewest[name] = min(fewest.get(name, asked), asked)
    partial = [
        f"{name} {asked:,} of {complete[name]:,} questions"
        for name, asked in fewest.items()
        if asked < complete[name]
    ]
    if partial:
        sentences.append(
            "Ours and the published numbers are not comparable, which are of complete benchmarks: "
            f"{', '.join(partial)}."
        )
    return list(dict.fromkeys(sentences))


def _why_none(cell: Mapping[str, Any]) -> str:
    """Why no published number can stand beside a cell, or ""."""
    model = cell["model"]
    frames = {row["num_frames"] for row in _content()["rows"] if row["model"] == model}
    if not frames:
        return f"Nothing is published for model {model}."
    if not _same_protocol(cell):
        return (
            f"Nothing published stands beside {model} under {cell['protocol']}: the published "
            f"numbers are made under {_content()['protocol']}."
        )
    if not _same_size(cell):
        ours, theirs = (
            f"{layers} layers of width {width}"
            for layers, width in (cell["decoder_shape"], _content()["decoder_shape"])
        )
        return f"Nothing published stands beside {model} of {ours}: the published has {theirs}."
    if cell.get("num_frames") not in (None, *frames):
        return (
            f"Nothing published stands beside {model} with {cell['num_frames']} frames: the "
            f"published has {', '.join(map(str, sorted(frames)))}."
        )
    return ""


def _same_protocol(cell: Mapping[str, Any]) -> bool:
    """Whether a cell was asked as the published ones were, as far as is known."""
    return harness_of(cell.get("protocol") or "") in ("", _content()["protocol"])


def _same_size(cell: Mapping[str, Any]) -> bool:
    """Whether a cell's language model has the published size, as far as is known."""
    shape = cell.get("decoder_shape")
    return shape is None or list(shape) == _content()["decoder_shape"]


@lru_cache(maxsize=1)
def _content() -> dict[str, Any]:
    """The file."""
    text = (files("jobs.results") / "published.yaml").read_text(encoding="utf-8")
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
