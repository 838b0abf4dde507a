"""One cause for every question: why A and B have another score, or another reply, on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from jobs.explain.answers import KEY
from jobs.explain.factors import FACTORS, Known, Mask, factors_of
from jobs.explain.settings import Difference, Factor
from jobs.explain.sides import Side

ONLY_A = "questions that only A has"
ONLY_B = "questions that only B has"
FAILED = "failed in one of the two"
SCORED = "same reply, read or scored differently"
SAME_INPUT = "same frames and prompt, another reply"
LEFT = "what is left: not recorded"
NOTHING = ""

_TITLES: Mapping[Factor, str] = {
    "model": "other model",
    "prompts": "other prompts",
    "frames": "other frames",
    "tokens": "other tokens or budgets",
}


@dataclass(frozen=True)
class Causes:
    """The questions of two results, each with its cause.

    Attributes:
        common: Questions with a score in both, with A's columns ending in `_a`, B's in `_b`, and
            `cause`: one of the names above, a title of factors such as `"other prompts + other
            frames"`, or `NOTHING` where score and reply are the same.
        only_a: Questions with a score in A alone.
        only_b: Questions with a score in B alone.
        titles: All causes of common questions that can occur, in the order of a table.
        factors: What is known of the input of every common question.
        settings: Settings that differ.
    """

    common: pd.DataFrame
    only_a: pd.DataFrame
    only_b: pd.DataFrame
    titles: Sequence[str]
    factors: Mapping[Factor, Known]
    settings: Sequence[Difference]


def causes_of(first: Side, second: Side) -> Causes:
    """Find the cause of every question.

    A question that failed in one run alone has that cause. One with equal replies was read or
    scored differently, unless its options stood in another order, which is another prompt. One with
    another reply has the parts of its input that are known to be others, all of them together: the
    answers cannot tell them apart. Where all are known to be the same, nothing but rounding is
    left; where one of them was not recorded, that is what is left.
    """
    a, b = (side.answers[side.answers["score"].notna()] for side in (first, second))
    merged = a.merge(b, on=KEY, how="outer", suffixes=("_a", "_b"), indicator="where", sort=False)
    common = merged[merged["where"] == "both"].reset_index(drop=True)
    factors, settings = factors_of(common, first, second)
    common["cause"] = _causes(common, factors)
    found = set(common["cause"]) - {NOTHING}
    fixed = (FAILED, SCORED, SAME_INPUT, *_TITLES.values())
    combined = sorted(found - {*fixed, LEFT})
    return Causes(
        common,
        _only(merged, "left_only"),
        _only(merged, "right_only"),
        (*fixed[:3], *_TITLES.values(), *combined, LEFT),
        factors,
        settings,
    )


def _only(merged: pd.DataFrame, where: str) -> pd.DataFrame:
    """The questions of one side alone."""
    return merged[merged["where"] == where].reset_index(drop=True)


def _causes(common: pd.DataFrame, factors: Mapping[Factor, Known]) -> np.ndarray:
    """(q,) cause of every common question."""
    failed_a, failed_b = (common[f"failed_{x}"].to_numpy(bool) for x in "ab")
    score_differs = (common["score_a"] != common["score_b"]).to_numpy(bool)
    texts = [common[f"text_{x}"] for x in "ab"]
    known_text = np.asarray(texts[0].notna() & texts[1].notna(), bool)
    stripped = [text.fillna("").astype(str).str.strip() for text in texts]
    same_reply = known_text & (stripped[0] == stripped[1]).to_numpy(bool)
    answered = ~failed_a & ~failed_b
    reordered = same_reply & score_differs & _reordered(common) & ~factors["prompts"].same
    causes = np.full(len(common), NOTHING, dtype=object)
    causes[failed_a ^ failed_b] = FAILED
    causes[answered & same_reply & score_differs & ~reordered] = SCORED
    other_reply = answered & ((~same_reply & (known_text | score_differs)) | reordered)
    others = {name: factors[name].other.copy() for name in FACTORS}
    others["prompts"] |= reordered
    all_same = np.all([factors[name].same for name in FACTORS], axis=0)
    named = np.array([_name(flags) for flags in zip(*others.values(), strict=True)], dtype=object)
    named = np.where(named == NOTHING, np.where(all_same & known_text, SAME_INPUT, LEFT), named)
    causes[other_reply] = named[other_reply]
    return causes


def _reordered(common: pd.DataFrame) -> Mask:
    """(q,) the right option has the same words and another place."""
    moved = common["answer_a"].notna() & common["answer_b"].notna()
    moved &= common["answer_a"] != common["answer_b"]
    words = common["answer_text_a"].notna() & (common["answer_text_a"] == common["answer_text_b"])
    return np.asarray(moved & words, bool)


def _name(flags: Sequence[bool]) -> str:
    """The title of the factors that are others."""
    return " + ".join(
        _TITLES[name] for name, is_other in zip(FACTORS, flags, strict=True) if is_other
    )
