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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pandas as pd

from jobs.explain.causes import (
    FAILED,
    LEFT,
    NOTHING,
    ONLY_A,
    ONLY_B,
    RULE,
    SAME_INPUT,
    SCORED,
    TITLES,
    Difference,
    Factor,
    causes_of,
    differences,
    inputs_of,
)
from jobs.explain.sides import KEY, Side
from jobs.results.answer_columns import metric_of
from jobs.results.cell_summary import CellSummary
from jobs.results.published import caveats, published_scores, source
from tango_core.benchmarks import facts_of
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.errors import InputError

PUBLISHED = "published"
"""Argument that selects the published score of the other result's setting."""

# Column -> what it says about a question, for the examples of a cause.
_DETAILS = {
    "error": "error",
    "prompt_digest": "prompt",
    "frames_digest": "frames",
    "tokens_kept": "tokens",
    "choice": "read as option",
    "answer": "right option",
}
# Part of the input -> what may be missing, and the column of the answers that records it.
_RECORDS: Mapping[Factor, tuple[str, str]] = {
    "model": ("the weights", ""),
    "prompts": ("the prompts", "prompt_digest"),
    "frames": ("the frames", "frames_digest"),
    "tokens": ("which tokens were kept", "kept_digest"),
}


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
    printed = [_printed(side, rows) for side, rows in ((first, a), (second, b))]
    shown = [mean_of(scores) for scores in printed]
    alike = [mean_of(common[f"score_{x}"]) for x in "ab"]
    ruled = [_by_rule(a, printed[0], -1), _by_rule(b, printed[1], 1)]
    fixed = (FAILED, SCORED, SAME_INPUT, *TITLES.values())
    combined = sorted({*causes} - {*fixed, LEFT, NOTHING})
    by_rule = shown[1] - means[1] - (shown[0] - means[0])
    points = {ONLY_A: alike[0] - means[0], ONLY_B: means[1] - alike[1], RULE: by_rule}
    parts = {ONLY_A: only_a, ONLY_B: only_b, RULE: pd.concat(ruled, ignore_index=True)}
    shares = []
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
        tuple(_notes(first, second)),
    )


def _printed(side: Side, rows: pd.DataFrame) -> pd.Series:
    """The scores that a result shows: the harness's for its own file, else the strict ones."""
    return rows["harness_score"].fillna(rows["score"]) if side.is_import else rows["score"]


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
) -> Iterable[str]:
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


def _notes(first: Side, second: Side) -> Iterable[str]:
    """Yield further remarks for the reader."""
    headline = facts_of(first.cell.benchmark).metrics[0]
    if headline.unit != "question":
        yield (
            f"The headline metric of {first.cell.benchmark}, the {headline.title}, is not defined "
            "for single questions; the accuracy is explained instead."
        )
    for side in (first, second):
        if side.is_import and side.facts.note:
            yield f"{side.facts.note} Its score is the one that the harness shows."


def against_published(
    side: Side, summary: CellSummary, *, published_first: bool, num_examples: int = 10
) -> Explanation:
    """Explain the difference between a cell and the published score of the same setting.

    Args:
        side: The cell.
        summary: Summary of the cell.
        published_first: Whether A is the published score.
        num_examples: Maximum number of examples per cause.

    Raises:
        InputError: If no score is published for the setting; the message gives the reason.
    """
    printed = published_scores(summary).get(side.cell.benchmark, {}).get("overall")
    if printed is None:
        reasons = " ".join(caveats([summary])) or "no row has its method, retention and options."
        raise InputError(
            f"{PUBLISHED}: nothing is printed for {side.cell.name!r} of {side.facts.model} on "
            f"{side.cell.benchmark}: {reasons}"
        )
    rows = side.answers[side.answers["score"].notna()]
    scores = [rows["score"], rows["harness_score"].fillna(rows["score"])]
    ours, by_harness, theirs = *map(mean_of, scores), Fraction(str(printed))
    sign = -1 if published_first else 1
    other = _by_rule(rows, scores[1], sign)
    results = (
        Result(side.facts.run_id, side.cell.name, ours, len(rows)),
        Result("printed by the papers", side.cell.name, theirs, None),
    )
    first, second = results[::sign]
    notes = [*caveats([summary]), f"Printed numbers are rounded to 0.1 points; from {source()}."]
    return Explanation(
        side.cell.benchmark,
        first,
        second,
        len(rows),
        (
            _share(RULE, other, sign * (by_harness - ours), num_examples),
            Share(LEFT, sign * (theirs - by_harness), len(rows)),
        ),
        ("prompts, frames, kept tokens, weights and replies of the printed number",),
        notes=tuple(notes),
    )
