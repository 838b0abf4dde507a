"""Assign each question one cause for its different score or reply.

Frames come before tokens: other frames make a compressor keep other positions, which is no cause
of its own. So kept positions are compared where the frames are not known to be others, and a
method's settings always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""What may be another thing in the input of a question."""

# Keys of the recipe's `model` section, by what they change.
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
# Of facts: they may change a reply by rounding alone.
_ENVIRONMENT = ("dtype", "device", "mode", "git_commit", "float32_products")
_LIBRARIES = ("tango-video", "torch", "transformers", "av", "decord", "torchcodec", "numpy")


@dataclass(frozen=True)
class Difference:
    """One setting that differs.

    Attributes:
        key: Dotted name.
        first: Its value in A, as text.
        second: Its value in B.
        factor: What it changes in the input; `None` for what changes a reply by rounding at most,
            or only says which questions were asked.
    """

    key: str
    first: str
    second: str
    factor: Factor | None = None


def _model_name(side: Side) -> str | None:
    """`None` where a harness's file names a model in its own way."""
    return side.facts.model if not side.is_import or side.facts.model in MODELS else None


def _cell_value(name: str) -> Callable[[Side], Any]:
    """Method or retention; of a file known only where the user has named them."""
    return lambda side: (
        None if side.is_import and side.cell.name == side.facts.model else getattr(side.cell, name)
    )


# Settings that facts state, by what they change; `None` or empty where one is not known.
_SETTINGS: tuple[tuple[str, Callable[[Side], Any], Factor | None], ...] = (
    ("model.name", _model_name, "model"),
    ("model.checkpoint", lambda side: side.facts.checkpoint, "model"),
    ("model.llm", lambda side: side.facts.llm and asdict(side.facts.llm), "model"),
    ("benchmark.protocol", lambda side: harness_of(side.cell.protocol), "prompts"),
    ("model.num_frames", lambda side: side.facts.num_frames, "frames"),
    ("model.input_size", lambda s: None if s.is_import else s.facts.input_size or "-", "tokens"),
    ("method.name", _cell_value("method"), "tokens"),
    ("method.retention", _cell_value("retention"), "tokens"),
    (
        "method.layer_shares",
        lambda side: None if side.is_import else _text(side.cell.layer_shares or "-"),
        "tokens",
    ),
)


def differences(first: Side, second: Side) -> list[Difference]:
    """Settings that are known in both results and differ, the important ones first."""
    values = [(key, read(first), read(second), factor) for key, read, factor in _SETTINGS]
    if first.cell.method == second.cell.method and not (first.is_import or second.is_import):
        own, other = first.cell.options, second.cell.options
        values += [
            (f"method.{key}", _text(own.get(key, "-")), _text(other.get(key, "-")), "tokens")
            for key in dict.fromkeys([*own, *other])
        ]
    values += _of_recipes(first, second)
    a, b = first.facts, second.facts
    values += [(key, getattr(a, key), getattr(b, key), None) for key in _ENVIRONMENT]
    values += [
        (f"versions.{key}", a.versions.get(key), b.versions.get(key), None) for key in _LIBRARIES
    ]
    found: dict[str, Difference] = {}
    for key, one, two, factor in values:
        known = all(value is not None and value != "" and value != {} for value in (one, two))
        if known and one != two:
            found.setdefault(key, Difference(key, _text(one), _text(two), factor))
    return list(found.values())


def changes(found: list[Difference], factor: Factor) -> bool:
    """Whether a setting differs that changes one part of the input."""
    return any(one.factor == factor for one in found)


def same_weights(first: Side, second: Side) -> bool | None:
    """Whether both read the same weights; `None` where that was not recorded."""
    ours, theirs = first.facts, second.facts
    if first.cell.cache and first.cell.cache == second.cell.cache:
        return True  # the name ends in the hash of all settings, the weights' digest among them
    if ours.checkpoint and theirs.checkpoint:
        return ours.checkpoint == theirs.checkpoint
    return None


def same_cache(first: Side, second: Side) -> bool:
    """Whether both read the token sets of one cache: same model, frames, compressor, options."""
    return bool(first.cell.cache) and first.cell.cache == second.cell.cache


def _of_recipes(first: Side, second: Side) -> Iterator[tuple[str, Any, Any, Factor | None]]:
    """What else the resolved recipes say; keys that a recipe does not have are not compared."""
    a, b = (dict(dotted(computed_part(side.job))) if side.job else {} for side in (first, second))
    for key in sorted(a.keys() & b.keys()):
        section, _, name = key.partition(".")
        factor = _MODEL_KEYS.get(name) if section == "model" else None
        if key in ("model.path", "model.revision") and same_weights(first, second) is None:
            factor = "model"
        if section not in ("method", "methods", "mode") and a[key] != b[key]:
            yield key, _text(a[key]), _text(b[key]), factor


def _text(value: object) -> str:
    """A value for people; long ones, such as digests, are cut."""
    text = str(value)
    return text if len(text) < 40 else f"{text[:16]}…{text[-8:]}"


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
