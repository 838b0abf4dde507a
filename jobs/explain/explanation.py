"""Decompose the difference of two scores into contributions per cause that sum to it exactly.

With C the questions that both results have, the difference of the means is

    mean_B - mean_A = (mean_A(C) - mean_A) + sum over C of (b - a) / |C| + (mean_B - mean_B(C))

A question that only one result has contributes through its effect on that result's mean, a common
question through its own score difference. All of these are scores by our strict rules. The file of
a harness shows the harness's scores instead; what these differ from the strict ones is one more
term. Sums are exact fractions; printed points are rounded so that they still add up.

Against a published score, whose single answers are unknown, only one cause can be computed: the
harness scores the same replies by other rules, and the run records that score beside ours. The
remainder is reported as unexplained.

Every question has one cause. Different frames lead to different kept positions, which is then not
a separate cause. Therefore kept positions are compared only where the frames are not known to
differ; the settings of the methods are always compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pandas as pd

from jobs.config.overrides import computed_part, dotted
from jobs.results.answer_columns import metric_of
from jobs.results.cell_summary import CellSummary
from jobs.results.facts import CellFacts, JobFacts
from jobs.results.published import caveats, source
from tango_core.benchmarks import facts_of
from tango_core.benchmarks.protocols.protocol import harness_of
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.models import MODELS

KEY = ["video_id", "question_id"]
PUBLISHED = "published"
"""Argument that selects the published score of the other result's setting."""

Factor = Literal["model", "prompts", "frames", "tokens"]
"""Part of the input that may differ between two results."""

TITLES: Mapping[Factor, str] = {
    "model": "other model",
    "prompts": "other prompts",
    "frames": "other frames",
    "tokens": "other tokens or budgets",
}
# Part of the input -> what may be missing, and the column of the answers that records it.
_RECORDS: Mapping[Factor, tuple[str, str]] = {
    "model": ("the weights", ""),
    "prompts": ("the prompts", "prompt_digest"),
    "frames": ("the frames", "frames_digest"),
    "tokens": ("which tokens were kept", "kept_digest"),
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
# Column -> what it says about a question, for the examples of a cause.
_DETAILS = {
    "error": "error",
    "prompt_digest": "prompt",
    "frames_digest": "frames",
    "tokens_kept": "tokens",
    "choice": "read as option",
    "answer": "right option",
}


@dataclass(frozen=True)
class Side:
    """One cell of a run or of a harness file, to be compared.

    Attributes:
        facts: Facts of the run.
        cell: The cell.
        job: The resolved recipe; empty if there is none.
        answers: One row per question, see `table_answers`.
    """

    facts: JobFacts
    cell: CellFacts
    job: Mapping[str, Any]
    answers: pd.DataFrame

    @property
    def is_import(self) -> bool:
        """Whether the answers were imported from another program, so its inputs are unknown."""
        return self.facts.kind == "import"


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
        for key in {**first.cell.options, **second.cell.options}:
            for own, side in ((ours, first), (theirs, second)):
                own[f"method.{key}"] = str(side.cell.options.get(key, "-")), "tokens"
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
    if _one_cache(first, second):
        return True  # its name contains a hash of all settings, including the weights' digest
    checkpoints = first.facts.checkpoint, second.facts.checkpoint
    return checkpoints[0] == checkpoints[1] if all(checkpoints) else None


def _one_cache(first: Side, second: Side) -> bool:
    return bool(first.cell.cache) and first.cell.cache == second.cell.cache


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
        if _one_cache(first, second):
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


@dataclass(frozen=True)
class Share:
    """Contribution of one cause to the score difference.

    Attributes:
        cause: Title of the cause.
        points: Contribution to B - A as a fraction (0.01 is one percentage point).
        questions: Number of questions with this cause.
        better: Number of these with a higher score in B.
        worse: Number of these with a lower score in B.
        examples: Example questions, those with a changed score first: `video_id`, `question_id`,
            `score_a`, `score_b`, `reply_a`, `reply_b`, and `detail`, which says what differs.
    """

    cause: str
    points: Fraction
    questions: int
    better: int = 0
    worse: int = 0
    examples: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Result:
    """One of the two compared results.

    Attributes:
        name: Name of the run or file.
        cell: Name of the cell.
        score: Mean score, in [0, 1].
        questions: Number of questions with a score; `None` if unknown.
    """

    name: str
    cell: str
    score: Fraction
    questions: int | None


@dataclass(frozen=True)
class Explanation:
    """Explanation of the score difference between results A and B.

    Attributes:
        benchmark: Name of the benchmark.
        first: Result A.
        second: Result B.
        common: Number of questions with a score in both results.
        shares: Contributions of all causes in table order; their points add up to the difference.
        not_recorded: Sentences about inputs that could not be compared.
        settings: Settings that differ.
        notes: Further remarks for the reader.
    """

    benchmark: str
    first: Result
    second: Result
    common: int
    shares: tuple[Share, ...]
    not_recorded: tuple[str, ...] = ()
    settings: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def metric(self) -> str:
        """Title of the explained score."""
        return metric_of(self.benchmark).title

    @property
    def difference(self) -> Fraction:
        """Score of B minus score of A, as a fraction."""
        return self.second.score - self.first.score

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data for JSON, with points in percentage points."""
        return {
            "benchmark": self.benchmark,
            "metric": self.metric,
            "a": {**vars(self.first), "score": float(self.first.score)},
            "b": {**vars(self.second), "score": float(self.second.score)},
            "common_questions": self.common,
            "difference_points": float(100 * self.difference),
            "causes": [{**vars(one), "points": float(100 * one.points)} for one in self.shares],
            "not_recorded": list(self.not_recorded),
            "settings": [vars(one) for one in self.settings],
            "notes": list(self.notes),
        }


def explained(first: Side, second: Side, num_examples: int = 10) -> Explanation:
    """Find the cause of every question and compute the contribution of every cause.

    Args:
        first: Result A.
        second: Result B.
        num_examples: Maximum number of examples per cause.
    """
    a, b = (side.answers[side.answers["score"].notna()] for side in (first, second))
    merged = a.merge(b, on=KEY, how="outer", suffixes=("_a", "_b"), indicator="where", sort=False)
    only_a, common, only_b = (
        merged[merged["where"] == where].reset_index(drop=True)
        for where in ("left_only", "both", "right_only")
    )
    settings = differences(first, second)
    inputs = inputs_of(common, first, second, settings)
    causes = causes_of(common, inputs)
    means = [mean_of(rows["score"]) for rows in (a, b)]
    # The file of a harness shows the harness's scores.
    printed = [
        rows["harness_score"].fillna(rows["score"]) if side.is_import else rows["score"]
        for side, rows in ((first, a), (second, b))
    ]
    shown = [mean_of(scores) for scores in printed]
    alike = [mean_of(common[f"score_{x}"]) for x in "ab"]
    ruled = [_by_rule(a, printed[0], -1), _by_rule(b, printed[1], 1)]
    fixed = (FAILED, SCORED, SAME_INPUT, *TITLES.values())
    combined = sorted({*causes} - {*fixed, LEFT, NOTHING})
    by_rule = shown[1] - means[1] - (shown[0] - means[0])
    points = {ONLY_A: alike[0] - means[0], ONLY_B: means[1] - alike[1], RULE: by_rule}
    parts = {ONLY_A: only_a, ONLY_B: only_b, RULE: pd.concat(ruled, ignore_index=True)}
    shares = []
    notes = [
        f"{side.facts.note} Its score is the one that the harness shows."
        for side in (first, second)
        if side.is_import and side.facts.note
    ]
    headline = facts_of(first.cell.benchmark).metrics[0]
    if headline.unit != "question":
        notes.insert(
            0,
            f"The headline metric of {first.cell.benchmark}, the {headline.title}, is not defined "
            "for single questions; the accuracy is explained instead.",
        )
    for title in (ONLY_A, ONLY_B, *fixed, *combined, RULE, LEFT):
        rows = parts[title] if title in parts else common[causes == title]
        if title not in points:
            moved = _sum(rows["score_b"]) - _sum(rows["score_a"])
            points[title] = moved / max(1, len(common))
        shares.append(_share(title, rows, points[title], num_examples))
    return Explanation(
        first.cell.benchmark,
        Result(first.facts.run_id, first.cell.name, shown[0], len(a)),
        Result(second.facts.run_id, second.cell.name, shown[1], len(b)),
        len(common),
        tuple(shares),
        tuple(_not_recorded(first, second, common, inputs)),
        tuple(settings),
        tuple(notes),
    )


def _by_rule(rows: pd.DataFrame, printed: pd.Series, sign: int) -> pd.DataFrame:
    """Questions of one result that a harness scores otherwise than the strict rules.

    Args:
        rows: The questions.
        printed: The harness's score of each.
        sign: 1 to go from the strict score to the harness's, -1 for the other direction.
    """
    paired = rows.assign(
        **{f"{name}_{x}": rows[name] for name in ("text", *_DETAILS) for x in "ab"},
        **dict(zip(("score_a", "score_b"), (rows["score"], printed)[::sign], strict=True)),
    )
    return paired[paired["score_a"] != paired["score_b"]].reset_index(drop=True)


def rounded_points(shares: Sequence[Fraction]) -> list[int]:
    """Round shares to hundredths of a point so that they add up to their rounded sum.

    Uses the largest remainder method: each value is off by at most one hundredth.
    """
    exact = [share * 10_000 for share in shares]
    whole = [value.numerator // value.denominator for value in exact]
    missing = round(sum(exact, Fraction(0))) - sum(whole)
    order = sorted(range(len(exact)), key=lambda at: (whole[at] - exact[at], at))
    for at in order[:missing]:
        whole[at] += 1
    return whole


def mean_of(scores: pd.Series) -> Fraction:
    """Exact mean; 0 of no scores."""
    return _sum(scores) / max(1, len(scores))


def _sum(scores: pd.Series) -> Fraction:
    """Exact sum; counts equal values first, because most scores are 0 or 1."""
    counts = Counter(scores.tolist())
    return sum((Fraction(value) * count for value, count in counts.items()), Fraction(0))


def _share(cause: str, rows: pd.DataFrame, points: Fraction, num_examples: int) -> Share:
    """The share of one cause, with some of its questions as examples."""
    change = rows["score_b"] - rows["score_a"]
    order = change.eq(0).sort_values(kind="stable").index[:num_examples]
    examples = tuple(_example(row) for row in rows.loc[order].to_dict("records"))
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    return Share(cause, points, len(rows), better, worse, examples)


def _example(row: dict[Any, Any]) -> dict[str, Any]:
    """One question of a cause; see `Share`."""
    details = []
    for column, title in _DETAILS.items():
        values = [row[f"{column}_{x}"] for x in "ab"]
        if "option" in title:
            values = [None if pd.isna(one) else LETTERS[int(one)] for one in values]
        texts = [_text(one)[:60] for one in values]
        if texts[0] != texts[1]:
            details.append(f"{title} {' and '.join(one or '?' for one in texts)}")
    scores = {f"score_{x}": row[f"score_{x}"] for x in "ab"}
    return {
        **{name: str(row[name]) for name in KEY},
        **{name: None if pd.isna(score) else score for name, score in scores.items()},
        **{f"reply_{x}": _text(row[f"text_{x}"]) for x in "ab"},
        "detail": ", ".join(details),
    }


def _text(value: Any) -> str:
    """Convert to a string; "" for a missing value."""
    return "" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)


def _not_recorded(
    first: Side, second: Side, common: pd.DataFrame, inputs: Mapping[Factor, pd.Series]
) -> Iterator[str]:
    """Yield the inputs that could not be compared, and on how many questions."""
    for name, (words, column) in _RECORDS.items():
        rows = common[inputs[name].isna()]
        lacks = [
            rows[f"{column}_{x}"].isna().any() if column else not side.facts.checkpoint
            for x, side in zip("ab", (first, second), strict=True)
        ]
        if len(rows) and any(lacks):
            who = " and ".join(x for x, is_missing in zip("AB", lacks, strict=True) if is_missing)
            yield f"{words} of {who}, on {len(rows):,} of {len(common):,} questions"


def against_published(
    side: Side, summary: CellSummary, printed: float, published_first: bool, num_examples: int
) -> Explanation:
    """Explain the difference between a cell and the published score of the same setting.

    Args:
        side: The cell.
        summary: Summary of the cell.
        printed: The published score, in [0, 1].
        published_first: Whether A is the published score.
        num_examples: Maximum number of examples per cause.
    """
    rows = side.answers[side.answers["score"].notna()]
    scores = [rows["score"], rows["harness_score"].fillna(rows["score"])]
    ours, by_harness, theirs = *map(mean_of, scores), Fraction(str(printed))
    sign = -1 if published_first else 1
    results = (
        Result(side.facts.run_id, side.cell.name, ours, len(rows)),
        Result("printed by the papers", side.cell.name, theirs, None),
    )
    first, second = results[::sign]
    points = sign * (by_harness - ours)
    rule = _share(RULE, _by_rule(rows, scores[1], sign), points, num_examples)
    return Explanation(
        side.cell.benchmark,
        first,
        second,
        len(rows),
        (rule, Share(LEFT, sign * (theirs - by_harness), len(rows))),
        ("prompts, frames, kept tokens, weights and replies of the printed number",),
        notes=(*caveats([summary]), f"Printed numbers are rounded to 0.1 points; from {source()}."),
    )
