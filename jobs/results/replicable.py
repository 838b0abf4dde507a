"""Runs that are no replicates: of other settings, or of one and the same training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from jobs.config.identity import computed_part
from jobs.results.cell_summary import CellSummary
from jobs.results.weights import checkpoint_of
from tango_core.benchmarks.protocols.versions import harness_of

# Keys of a recipe's `model` that are the training's, the machine's, or what facts know better.
_MAY_DIFFER = {"name", "path", "revision", "num_frames", "dtype", "device", "compile", "sinks"}
_MAY_DIFFER |= {"encode_batch", "saliency_from"}
_OF_THE_BENCHMARK = ("split", "seed")


def raise_if_no_replicates(cells: Sequence[Sequence[CellSummary]]) -> None:
    """Refuse cells that differ in more than the training of their model, or not even in that.

    Args:
        cells: The same cell of every run, per cell; what one does not know is not compared.

    Raises:
        ValueError: In one line that says what differs, or which runs are of one checkpoint.
    """
    for own in cells:
        _raise_if_several("num_frames", [cell.num_frames for cell in own])
        _raise_if_several("input size", [cell.input_size or "as published" for cell in own])
        _raise_if_several("protocol", [harness_of(cell.protocol) or None for cell in own])
        _raise_if_several("size (layers, width)", [cell.llm_shape for cell in own])
    for own in cells:
        for (at, one), (other_at, other) in combinations(enumerate(own, 1), 2):
            if checkpoint_of(one) and checkpoint_of(one) == checkpoint_of(other):
                raise ValueError(
                    f"run {at} and run {other_at} are of one checkpoint "
                    f"({checkpoint_of(one)[:12]}): the same training again is no replicate; name "
                    "one run per training"
                )


def raise_if_other_recipes(recipes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse runs whose recipes ask for other questions or another input of the model.

    Args:
        recipes: Resolved recipe of every run; `{}` where there is none, which is not compared.

    Raises:
        ValueError: In one line that names the setting.
    """
    sections = [computed_part(recipe) for recipe in recipes]
    models = [_mapping(section.get("model")) for section in sections]
    for key in sorted({key for model in models for key in model} - _MAY_DIFFER):
        values = [str(model.get(key, "not set")) if model else None for model in models]
        _raise_if_several(f"model.{key}", values)
    for key in _OF_THE_BENCHMARK:
        asked = [_mapping(section.get("benchmark")).get(key) for section in sections]
        _raise_if_several(f"benchmark.{key}", asked)


def _mapping(section: object) -> Mapping[str, Any]:
    """A section of a recipe; empty if it is none."""
    return section if isinstance(section, Mapping) else {}


def _raise_if_several(what: str, values: Sequence[object]) -> None:
    """Refuse runs that differ in a setting; `None` is unknown."""
    first: dict[object, int] = {}
    for number, value in enumerate(values, 1):
        if value is not None:
            first.setdefault(value, number)
    if len(first) > 1:
        listed = ", ".join(f"{value} in run {number}" for value, number in first.items())
        raise ValueError(
            f"{what} differs: {listed}; replicates are runs of one recipe with models that differ "
            "by their training alone (model.path)"
        )
