"""Assign to each question one cause of its different score or reply.

Different frames lead to different kept positions, which is then not a separate cause. Therefore
kept positions are compared only where the frames are not known to differ; the settings of the
methods are always compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from jobs.config.identity import computed_part
from jobs.config.overrides import dotted
from jobs.explain.sides import KEY, Side
from tango_core.benchmarks.protocols.protocol import harness_of
from tango_core.models import MODELS

Factor = Literal["prompts", "frames", "tokens", "model"]
"""Part of the input that may differ between two results."""

# Keys of the recipe's `model` section -> the part of the input that they change.
_MODEL_KEYS: Mapping[str, Factor] = {
    "position_rule": "model",
    "seconds_per_grid": "model",
    "num_frames": "frames",
    "sampling": "frames",
    "pooling": "tokens",
    "pooling_step": "tokens",
    "max_pixels": "tokens",
    "min_pixels": "tokens",
    "frame_area": "tokens",
    "companions": "tokens",
    "saliency_from": "tokens",
    "sinks": "tokens",
}
# Fields of the facts that can only change replies through rounding.
_ENVIRONMENT = ("dtype", "device", "mode", "git_commit", "float32_products")
# Prefix of settings of the recipe, which are compared apart from those of the facts.
_RECIPE = "recipe: "
_LIBRARIES = ("tango-video", "torch", "transformers", "av", "decord", "torchcodec", "numpy")


@dataclass(frozen=True)
class Difference:
    """One setting that differs.

    Attributes:
        key: Dotted name.
        first: Value in A, as a string.
        second: Value in B, as a string.
        factor: Part of the input that it changes; `None` if it can only cause rounding differences
            or only selects questions.
    """

    key: str
    first: str
    second: str
    factor: Factor | None = None


def differences(first: Side, second: Side) -> list[Difference]:
    """Settings that are known in both results and differ, those that change the input first."""
    ours, theirs = _settings(first), _settings(second)
    if first.cell.method == second.cell.method and not (first.is_import or second.is_import):
        options = first.cell.options, second.cell.options
        for key in {**options[0], **options[1]}:
            for own, values in zip((ours, theirs), options, strict=True):
                own[f"method.{key}"] = values.get(key, "-"), "tokens"
    found: dict[str, Difference] = {}
    for name, (one, factor) in ours.items():
        key = name.removeprefix(_RECIPE)
        two, _ = theirs.get(name, (None, None))
        known = all(value is not None and value != "" and value != {} for value in (one, two))
        if known and one != two:
            if key in ("model.path", "model.revision") and same_weights(first, second) is None:
                factor = "model"
            found.setdefault(key, Difference(key, _text(one), _text(two), factor))
    return sorted(found.values(), key=lambda one: one.factor is None)


def _settings(side: Side) -> dict[str, tuple[Any, Factor | None]]:
    """Settings of a result with the part of the input that each changes; `None` if unknown."""
    facts, cell, recorded = side.facts, side.cell, not side.is_import
    has_method = recorded or cell.name != facts.model  # the user can name it for a harness file
    found: dict[str, tuple[Any, Factor | None]] = {
        "model.name": (facts.model if recorded or facts.model in MODELS else None, "model"),
        "model.checkpoint": (facts.checkpoint, "model"),
        "model.llm": (facts.llm and asdict(facts.llm), "model"),
        "benchmark.protocol": (harness_of(cell.protocol), "prompts"),
        "model.num_frames": (facts.num_frames, "frames"),
        "model.input_size": ((facts.input_size or "-") if recorded else None, "tokens"),
        "method.name": (cell.method if has_method else None, "tokens"),
        "method.retention": (cell.retention if has_method else None, "tokens"),
        "method.layer_shares": (str(cell.layer_shares or "-") if recorded else None, "tokens"),
    }
    recipe = dict(dotted(computed_part(side.job))) if side.job else {}
    for key in sorted(recipe):
        section, _, name = key.partition(".")
        if section not in ("method", "methods", "mode"):
            factor = _MODEL_KEYS.get(name) if section == "model" else None
            found[_RECIPE + key] = str(recipe[key]), factor
    found |= {key: (getattr(facts, key), None) for key in _ENVIRONMENT}
    return found | {f"versions.{key}": (facts.versions.get(key), None) for key in _LIBRARIES}


def same_weights(first: Side, second: Side) -> bool | None:
    """Whether both used the same weights; `None` if not recorded."""
    ours, theirs = first.facts, second.facts
    if first.cell.cache and first.cell.cache == second.cell.cache:
        return True  # the cache name contains a hash of all settings, including the weights' digest
    if ours.checkpoint and theirs.checkpoint:
        return ours.checkpoint == theirs.checkpoint
    return None


def _text(value: object) -> str:
    """Format a value for display; long values, such as digests, are shortened."""
    text = str(value)
    return text if len(text) < 40 else f"{text[:16]}…{text[-8:]}"


Mask = npt.NDArray[np.bool_]

FACTORS: tuple[Factor, ...] = ("model", "prompts", "frames", "tokens")


@dataclass(frozen=True)
class Known:
    """Comparison of one part of the input for every question.

    Where neither mask is set, the part was not recorded.

    Attributes:
        other: (q,) mask of questions where it is known to differ.
        same: (q,) mask of questions where it is known to be the same.
    """

    other: Mask
    same: Mask


def factors_of(
    common: pd.DataFrame, first: Side, second: Side
) -> tuple[Mapping[Factor, Known], Sequence[Difference]]:
    """Compare each factor for every question; also returns the settings that differ.

    Args:
        common: The common questions, with the columns of A ending in `_a` and those of B in `_b`.
        first: Result A.
        second: Result B.
    """
    settings = differences(first, second)
    changed = {one.factor for one in settings}
    size, other_model = len(common), "model" in changed
    same_model = not other_model and same_weights(first, second) is True
    model = Known(np.full(size, other_model), np.full(size, same_model))
    frames = _by_digest(common, "frames_digest", "frames" in changed)
    if "tokens" in changed:
        tokens = Known(np.ones(size, bool), np.zeros(size, bool))
    else:
        same_cache = bool(first.cell.cache) and first.cell.cache == second.cell.cache
        tokens = _tokens(common, frames, model, same_cache)
    prompts = _by_digest(common, "prompt_digest", "prompts" in changed)
    # The digest covers the benchmark's prompt but not text added by the model; compare lengths.
    comparable = frames.same & tokens.same & ~model.other
    words = [common[f"prompt_tokens_{x}"] - common[f"tokens_with_newlines_{x}"] for x in "ab"]
    longer = comparable & _both(*words) & (words[0] != words[1]).to_numpy()
    prompts = Known(prompts.other | longer, prompts.same & ~longer)
    return {"model": model, "prompts": prompts, "frames": frames, "tokens": tokens}, settings


def _by_digest(common: pd.DataFrame, column: str, setting_differs: bool) -> Known:
    """Compare a digest per question; without digests, use the runs' settings."""
    first, second = common[f"{column}_a"], common[f"{column}_b"]
    known = _both(first, second)
    equal = (first == second).to_numpy(bool)
    return Known((known & ~equal) | (~known & setting_differs), known & equal)


def _tokens(common: pd.DataFrame, frames: Known, model: Known, same_cache: bool) -> Known:
    """Compare numbers of tokens and kept positions; `same_cache`: both used one token cache."""
    positions = _by_digest(common, "kept_digest", setting_differs=False)
    other, counted = positions.other, np.ones(len(common), bool)
    for column in ("tokens_total", "tokens_kept"):
        first, second = common[f"{column}_a"], common[f"{column}_b"]
        known = _both(first, second)
        counted &= known
        other = other | (known & (first != second).to_numpy())
    # With different frames or weights, different positions are not a separate cause.
    unknown = ~(positions.same | positions.other)
    other = other & ~frames.other & ~model.other
    same = positions.same | (counted & same_cache & frames.same & unknown)
    return Known(other, same & ~other)


def _both(first: pd.Series, second: pd.Series) -> Mask:
    """Mask of rows where both series have a value."""
    return np.asarray(first.notna() & second.notna(), dtype=bool)


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
        only_a: Questions with a score only in A.
        only_b: Questions with a score only in B.
        titles: All possible causes of common questions, in table order.
        factors: Comparison of the inputs of every common question.
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

    If a question failed in only one run, that is its cause. If the replies are equal, they were
    read or scored differently, unless the options were in another order, which is another prompt.
    If the replies differ, the cause is the combination of all parts of the input that are known to
    differ. If all parts are known to be the same, only rounding remains (`SAME_INPUT`); if a part
    was not recorded, the cause is unknown (`LEFT`).
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
        merged[merged["where"] == "left_only"].reset_index(drop=True),
        merged[merged["where"] == "right_only"].reset_index(drop=True),
        (*fixed[:3], *_TITLES.values(), *combined, LEFT),
        factors,
        settings,
    )


def _causes(common: pd.DataFrame, factors: Mapping[Factor, Known]) -> np.ndarray:
    """(q,) cause of every common question."""
    failed_a, failed_b = (common[f"failed_{x}"].to_numpy(bool) for x in "ab")
    score_differs = (common["score_a"] != common["score_b"]).to_numpy(bool)
    texts = [common[f"text_{x}"] for x in "ab"]
    known_text = np.asarray(texts[0].notna() & texts[1].notna(), bool)
    stripped = [text.fillna("").astype(str).str.strip() for text in texts]
    same_reply = known_text & (stripped[0] == stripped[1]).to_numpy(bool)
    answered = ~failed_a & ~failed_b
    # The right option has the same text but another position.
    moved = _both(common["answer_a"], common["answer_b"]) & _both(
        common["answer_text_a"], common["answer_text_b"]
    )
    moved &= (common["answer_a"] != common["answer_b"]).to_numpy(bool)
    moved &= (common["answer_text_a"] == common["answer_text_b"]).to_numpy(bool)
    reordered = same_reply & score_differs & moved & ~factors["prompts"].same
    causes = np.full(len(common), NOTHING, dtype=object)
    causes[failed_a ^ failed_b] = FAILED
    causes[answered & same_reply & score_differs & ~reordered] = SCORED
    other_reply = answered & ((~same_reply & (known_text | score_differs)) | reordered)
    others = {name: factors[name].other.copy() for name in FACTORS}
    others["prompts"] |= reordered
    all_same = np.all([factors[name].same for name in FACTORS], axis=0)
    named = np.array(
        [
            " + ".join(title for title, flag in zip(_TITLES.values(), flags, strict=True) if flag)
            for flags in zip(*others.values(), strict=True)
        ],
        dtype=object,
    )
    named = np.where(named == NOTHING, np.where(all_same & known_text, SAME_INPUT, LEFT), named)
    causes[other_reply] = named[other_reply]
    return causes
