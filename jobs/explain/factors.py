"""What is known about the input of every common question: the same, another one, or not recorded.

Frames come before tokens: other frames make a compressor keep other positions, which is no cause
of its own. So kept positions are compared where the frames are not known to be others, and a
method's settings always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from jobs.explain.settings import (
    Difference,
    Factor,
    changes,
    differences,
    same_cache,
    same_weights,
)
from jobs.explain.sides import Side

Mask = npt.NDArray[np.bool_]

FACTORS: tuple[Factor, ...] = ("model", "prompts", "frames", "tokens")


@dataclass(frozen=True)
class Known:
    """One part of the input, for every question.

    Attributes:
        other: (q,) it is known to be another one.
        same: (q,) it is known to be the same; where neither holds it was not recorded.
    """

    other: Mask
    same: Mask


def factors_of(
    common: pd.DataFrame, first: Side, second: Side
) -> tuple[Mapping[Factor, Known], Sequence[Difference]]:
    """What is known of each factor, and the settings that differ.

    Args:
        common: The common questions, with the columns of A ending in `_a` and those of B in `_b`.
        first: A.
        second: B.
    """
    settings = differences(first, second)
    model = _model(len(common), first, second, settings)
    frames = _by_digest(common, "frames_digest", changes(settings, "frames"))
    tokens = _tokens(common, frames, model, changes(settings, "tokens"), same_cache(first, second))
    prompts = _by_digest(common, "prompt_digest", changes(settings, "prompts"))
    # What a model adds to the words of the benchmark is not in their digest, but it has a length.
    comparable = frames.same & tokens.same & ~model.other
    words = [common[f"prompt_tokens_{x}"] - common[f"tokens_with_newlines_{x}"] for x in "ab"]
    longer = comparable & _both(*words) & (words[0] != words[1]).to_numpy()
    prompts = Known(prompts.other | longer, prompts.same & ~longer)
    return {"model": model, "prompts": prompts, "frames": frames, "tokens": tokens}, settings


def _model(size: int, first: Side, second: Side, settings: Sequence[Difference]) -> Known:
    """The weights, and options that change what the language model computes."""
    other = changes(list(settings), "model")
    same = not other and same_weights(first, second) is True
    return Known(np.full(size, other), np.full(size, same))


def _by_digest(common: pd.DataFrame, column: str, setting_differs: bool) -> Known:
    """By a digest per question; where there is none, by the runs' settings."""
    first, second = common[f"{column}_a"], common[f"{column}_b"]
    known = _both(first, second)
    equal = (first == second).to_numpy(bool)
    return Known((known & ~equal) | (~known & setting_differs), known & equal)


def _tokens(
    common: pd.DataFrame, frames: Known, model: Known, setting_differs: bool, same_cache: bool
) -> Known:
    """The method, its budget, and the positions that it kept."""
    if setting_differs:
        return Known(np.ones(len(common), bool), np.zeros(len(common), bool))
    positions = _by_digest(common, "kept_digest", setting_differs=False)
    other, counted = positions.other, np.ones(len(common), bool)
    for column in ("tokens_total", "tokens_kept"):
        first, second = common[f"{column}_a"], common[f"{column}_b"]
        known = _both(first, second)
        counted &= known
        other = other | (known & (first != second).to_numpy())
    # Other frames and other weights make a method keep other positions.
    other = other & ~frames.other & ~model.other
    same = positions.same | (counted & same_cache & frames.same & ~_known(common, "kept_digest"))
    return Known(other, same & ~other)


def _known(common: pd.DataFrame, column: str) -> Mask:
    """(q,) both sides have a value."""
    return _both(common[f"{column}_a"], common[f"{column}_b"])


def _both(first: pd.Series, second: pd.Series) -> Mask:
    """(q,) both have a value."""
    return np.asarray(first.notna() & second.notna(), dtype=bool)
