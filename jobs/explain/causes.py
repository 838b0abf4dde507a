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
import pandas as pd

from jobs.config.overrides import computed_part, dotted
from jobs.explain.sides import Side
from tango_core.benchmarks.protocols.protocol import harness_of
from tango_core.models import MODELS

Factor = Literal["model", "prompts", "frames", "tokens"]
"""Part of the input that may differ between two results."""

TITLES: Mapping[Factor, str] = {
    "model": "other model",
    "prompts": "other prompts",
    "frames": "other frames",
    "tokens": "other tokens or budgets",
}
ONLY_A = "questions that only A has"
ONLY_B = "questions that only B has"
FAILED = "failed in one of the two"
SCORED = "same reply, read or scored differently"
RULE = "the harness's own scoring rule"
SAME_INPUT = "same frames and prompt, another reply"
LEFT = "what is left: not recorded"
NOTHING = ""

# Keys of the recipe's `model` section -> the part of the input that they change.
_MODEL_KEYS: Mapping[str, Factor] = {
    **dict.fromkeys(("position_rule", "seconds_per_grid"), "model"),
    **dict.fromkeys(("num_frames", "sampling"), "frames"),
    **dict.fromkeys(("pooling", "pooling_step", "max_pixels", "min_pixels"), "tokens"),
    **dict.fromkeys(("frame_area", "companions", "saliency_from", "sinks"), "tokens"),
}
# Fields of the facts that can only change replies through rounding.
_ENVIRONMENT = ("dtype", "device", "mode", "git_commit", "float32_products", "versions")


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
                own[f"method.{key}"] = str(values.get(key, "-")), "tokens"
    found = []
    for key, (one, factor) in ours.items():
        two, _ = theirs.get(key, (one, None))
        if one != two:
            if key in ("model.path", "model.revision") and same_weights(first, second) is None:
                factor = "model"
            found.append(Difference(key, one, two, factor))
    return sorted(found, key=lambda one: one.factor is None)


def _settings(side: Side) -> dict[str, tuple[str, Factor | None]]:
    """Known settings of a result, each with the part of the input that it changes."""
    facts, cell = side.facts, side.cell
    found: dict[str, tuple[Any, Factor | None]] = {
        "model.checkpoint": (facts.checkpoint, "model"),
        "model.llm": (facts.llm and asdict(facts.llm), "model"),
        "benchmark.protocol": (harness_of(cell.protocol), "prompts"),
        "model.num_frames": (facts.num_frames, "frames"),
    }
    if not side.is_import or facts.model in MODELS:
        found["model.name"] = facts.model, "model"
    if not side.is_import or cell.name != facts.model:  # `tango import` can name the method
        found["method.name"] = cell.method, "tokens"
        found["method.retention"] = cell.retention, "tokens"
    if not side.is_import:
        found["model.input_size"] = facts.input_size or "-", "tokens"
        found["method.layer_shares"] = cell.layer_shares or "-", "tokens"
    environment = {key: getattr(facts, key) for key in _ENVIRONMENT}
    found |= {key: (value, None) for key, value in dotted(environment)}
    for key, value in sorted(dotted(computed_part(side.job) if side.job else {})):
        section, _, name = key.partition(".")
        if section not in ("method", "methods", "mode"):
            factor = _MODEL_KEYS.get(name) if section == "model" else None
            found.setdefault(key, (value, factor))
    return {key: (str(value), of) for key, (value, of) in found.items() if value or value == 0}


def same_weights(first: Side, second: Side) -> bool | None:
    """Whether both used the same weights; `None` if not recorded."""
    ours, theirs = first.facts, second.facts
    if first.cell.cache and first.cell.cache == second.cell.cache:
        return True  # the cache name contains a hash of all settings, including the weights' digest
    if ours.checkpoint and theirs.checkpoint:
        return ours.checkpoint == theirs.checkpoint
    return None


def inputs_of(
    common: pd.DataFrame, first: Side, second: Side, settings: Sequence[Difference]
) -> dict[Factor, pd.Series]:
    """Compare each part of the input for every question.

    Args:
        common: The common questions, with the columns of A ending in `_a` and those of B in `_b`.
        first: Result A.
        second: Result B.
        settings: Settings that differ.

    Returns:
        Nullable booleans: whether a part differs; missing where it was not recorded.
    """
    changed = {one.factor for one in settings}

    def everywhere(value: bool | None) -> pd.Series:
        return pd.Series(value, common.index, dtype="boolean")

    same = same_weights(first, second)
    model = everywhere(True if "model" in changed else None if same is None else not same)
    prompts, frames = (_differs(common, name) for name in ("prompt_digest", "frames_digest"))
    if "prompts" in changed:
        prompts = prompts.fillna(True)
    if "frames" in changed:
        frames = frames.fillna(True)
    if "tokens" in changed:
        tokens = everywhere(True)
    else:
        kept, *numbers = (
            _differs(common, name) for name in ("kept_digest", "tokens_total", "tokens_kept")
        )
        numbers_differ = numbers[0] | numbers[1]
        if first.cell.cache and first.cell.cache == second.cell.cache:
            kept = kept.mask(_is(kept.isna() & ~frames & ~numbers_differ), False)
        # With different frames or weights, different positions are not a separate cause.
        other = _is(kept | numbers_differ) & ~_is(frames) & ~_is(model)
        tokens = kept.mask(_is(kept), pd.NA).mask(other, True)
    # The digest covers the benchmark's prompt but not text added by the model; compare lengths.
    words = [common[f"prompt_tokens_{x}"] - common[f"tokens_with_newlines_{x}"] for x in "ab"]
    longer = (words[0] != words[1]) & words[0].notna() & words[1].notna()
    prompts = prompts.mask(longer & _is(~frames & ~tokens) & ~_is(model), True)
    return {"model": model, "prompts": prompts, "frames": frames, "tokens": tokens}


def _differs(common: pd.DataFrame, column: str) -> pd.Series:
    """Whether A and B differ in a column; missing where one has no value."""
    first, second = common[f"{column}_a"], common[f"{column}_b"]
    return (first != second).astype("boolean").mask(first.isna() | second.isna())


def _is(known: pd.Series) -> pd.Series:
    """Nullable booleans as booleans; missing counts as `False`."""
    return known.fillna(False).astype(bool)


def causes_of(common: pd.DataFrame, inputs: Mapping[Factor, pd.Series]) -> pd.Series:
    """The cause of every common question; `NOTHING` where score and reply are the same.

    If a question failed in only one run, that is its cause. If the replies are equal, they were
    read or scored differently, unless the options were in another order, which is another prompt.
    If the replies differ, the cause is the combination of all parts of the input that are known to
    differ. If all parts are known to be the same, only rounding remains (`SAME_INPUT`); if a part
    was not recorded, the cause is unknown (`LEFT`).
    """
    failed = common["failed_a"].astype(bool), common["failed_b"].astype(bool)
    score_differs = common["score_a"] != common["score_b"]
    texts = [common[f"text_{x}"].astype("string").str.strip() for x in "ab"]
    has_texts = texts[0].notna() & texts[1].notna()
    same_reply = _is(texts[0] == texts[1])
    # The right option has the same text but another position.
    moved = _is(_differs(common, "answer") & ~_differs(common, "answer_text"))
    reordered = same_reply & score_differs & moved & ~_is(~inputs["prompts"])
    other_reply = (~same_reply & (has_texts | score_differs)) | reordered
    titles = pd.Series("", common.index, dtype=object)
    for name, title in TITLES.items():
        differs = _is(inputs[name]) | (reordered & (name == "prompts"))
        titles += np.where(differs, f" + {title}", "")
    titles = titles.str.removeprefix(" + ")
    all_same = np.logical_and.reduce([_is(~one) for one in inputs.values()])
    causes = pd.Series(NOTHING, common.index, dtype=object)
    causes[same_reply & score_differs] = SCORED
    causes[other_reply] = LEFT
    causes[other_reply & all_same & has_texts] = SAME_INPUT
    causes[other_reply & (titles != "")] = titles
    causes[failed[0] | failed[1]] = NOTHING
    causes[failed[0] ^ failed[1]] = FAILED
    return causes
