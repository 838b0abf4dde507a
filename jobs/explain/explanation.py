"""Decompose the difference of two scores into contributions per cause that sum to it exactly.

With C the questions that both results have, the difference of the means is

    mean_B - mean_A = (mean_A(C) - mean_A) + sum over C of (b - a) / |C| + (mean_B - mean_B(C))

A question that only one result has contributes through its effect on that result's mean, a common
question through its own score difference. Sums are exact fractions; printed points are rounded so
that they still add up.

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

import numpy as np
import pandas as pd

from jobs.explain.causes import FACTORS, FAILED, LEFT, ONLY_A, ONLY_B, SCORED, Causes, Difference
from jobs.explain.sides import Side
from jobs.results.answer_columns import metric_of
from jobs.results.cell_summary import CellSummary
from jobs.results.published import caveats, published_scores, source
from tango_core.benchmarks import facts_of
from tango_core.errors import InputError

_DIGEST_SHOWN = 8
_SCORES = ("score_a", "score_b")


# A question with the keys `video_id`, `question_id`, `score_a`, `score_b`, `reply_a`, `reply_b` and
# `detail` (a short description of what differs).
Example = dict[str, Any]


def examples_of(rows: pd.DataFrame, cause: str, number: int) -> tuple[Example, ...]:
    """Example questions of a cause, those with a changed score first."""
    changed = (rows["score_a"] != rows["score_b"]).to_numpy(bool)
    chosen = pd.concat([rows[changed].head(number), rows[~changed].head(number)]).head(number)
    return tuple(
        {
            "video_id": str(row["video_id"]),
            "question_id": str(row["question_id"]),
            **{name: None if pd.isna(row[name]) else float(row[name]) for name in _SCORES},
            **{f"reply_{x}": _text(row[f"text_{x}"]) for x in "ab"},
            "detail": _detail(row, cause),
        }
        for row in chosen.to_dict("records")
    )


def _detail(row: dict[Any, Any], cause: str) -> str:
    """Describe what differs between A and B on one question."""
    if cause in (ONLY_A, ONLY_B):
        return cause.removeprefix("questions that ")
    if cause == FAILED:
        side = "a" if row["failed_a"] else "b"
        return f"{side.upper()} failed: {_text(row[f'error_{side}'])}"

    def differs(name: str) -> bool:
        first, second = row[f"{name}_a"], row[f"{name}_b"]
        return bool(first != second and not (pd.isna(first) and pd.isna(second)))

    if cause == SCORED:
        for name, what in (("choice", "read as"), ("answer", "right is")):
            if differs(name):
                options = " and ".join(_option(row[f"{name}_{x}"]) for x in "ab")
                return f"{what} option {options}"
        return "scored differently"
    parts = []
    for word, name in (("prompt", "prompt_digest"), ("frames", "frames_digest")):
        if word in cause and differs(name):
            shown = [str(row[f"{name}_{x}"])[:_DIGEST_SHOWN] for x in "ab"]
            parts.append(f"{word} {shown[0]} and {shown[1]}")
    kept = [row[f"tokens_kept_{x}"] for x in "ab"] if "tokens" in cause else []
    if not all(map(pd.isna, kept)):
        shown = ["?" if pd.isna(one) else f"{one:.0f}" for one in kept]
        same = ", other positions" if shown[0] == shown[1] else ""
        parts.append(f"tokens {shown[0]} and {shown[1]}{same}")
    return ", ".join(parts)


def _option(index: Any) -> str:
    """Letter of an option index; "none" if it is missing."""
    if pd.isna(index):
        return "none"
    return chr(ord("A") + int(index)) if 0 <= index < 26 else f"{index:.0f}"


def _text(value: Any) -> str:
    """Convert to a string; "" for a missing value."""
    return "" if value is None or pd.isna(value) else str(value)


_HUNDREDTHS = 10_000  # hundredths of a percentage point in a share of 1


@dataclass(frozen=True)
class Share:
    """Contribution of one cause to the score difference.

    Attributes:
        cause: Title of the cause.
        points: Contribution to B - A as a fraction (0.01 is one percentage point).
        questions: Number of questions with this cause.
        better: Number of these with a higher score in B.
        worse: Number of these with a lower score in B.
        examples: Example questions, those with a changed score first.
    """

    cause: str
    points: Fraction
    questions: int
    better: int = 0
    worse: int = 0
    examples: tuple[Example, ...] = ()


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
        metric: Title of the explained score.
        first: Result A.
        second: Result B.
        common: Number of questions with a score in both results.
        shares: Contributions of all causes in table order; their points add up to the difference.
        not_recorded: Sentences about inputs that could not be compared.
        settings: Settings that differ.
        notes: Further remarks for the reader.
    """

    benchmark: str
    metric: str
    first: Result
    second: Result
    common: int
    shares: tuple[Share, ...]
    not_recorded: tuple[str, ...] = ()
    settings: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

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


def explained(first: Side, second: Side, causes: Causes, num_examples: int = 10) -> Explanation:
    """Compute the contribution of every cause.

    Args:
        first: Result A.
        second: Result B.
        causes: Causes of their questions.
        num_examples: Maximum number of examples per cause.
    """
    common = causes.common
    only = {ONLY_A: causes.only_a["score_a"], ONLY_B: causes.only_b["score_b"]}
    sums = {x: _sum(common[f"score_{x}"]) for x in "ab"}
    a = _mean(sums["a"] + _sum(only[ONLY_A]), len(common) + len(only[ONLY_A]))
    b = _mean(sums["b"] + _sum(only[ONLY_B]), len(common) + len(only[ONLY_B]))
    alike = [_mean(sums[x], len(common)) for x in "ab"]
    shares = [
        _share(ONLY_A, causes.only_a, alike[0] - a, num_examples),
        _share(ONLY_B, causes.only_b, b - alike[1], num_examples),
    ]
    for title in causes.titles:
        rows = common[common["cause"] == title]
        points = _mean(_sum(rows["score_b"]) - _sum(rows["score_a"]), len(common))
        shares.append(_share(title, rows, points, num_examples))
    return Explanation(
        first.cell.benchmark,
        metric_of(first.cell.benchmark).title,
        Result(first.facts.run_id, first.cell.name, a, len(common) + len(causes.only_a)),
        Result(second.facts.run_id, second.cell.name, b, len(common) + len(causes.only_b)),
        len(common),
        tuple(shares),
        tuple(_not_recorded(first, second, causes)),
        tuple(causes.settings),
        tuple(_notes(first, second, causes)),
    )


def rounded_points(shares: Sequence[Fraction]) -> list[int]:
    """Round shares to hundredths of a point so that they add up to their rounded sum.

    Uses the largest remainder method: each value is off by at most one hundredth.
    """
    exact = [share * _HUNDREDTHS for share in shares]
    whole = [value.numerator // value.denominator for value in exact]
    missing = round(sum(exact, Fraction(0))) - sum(whole)
    order = sorted(range(len(exact)), key=lambda at: (whole[at] - exact[at], at))
    for at in order[:missing]:
        whole[at] += 1
    return whole


def _share(cause: str, rows: pd.DataFrame, points: Fraction, num_examples: int) -> Share:
    """Build the share of one cause from its questions."""
    change = rows["score_b"] - rows["score_a"]
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    return Share(cause, points, len(rows), better, worse, examples_of(rows, cause, num_examples))


def _sum(scores: pd.Series) -> Fraction:
    """Exact sum; counts equal values first, because most scores are 0 or 1."""
    counts = Counter(scores.tolist())
    return sum((Fraction(value) * count for value, count in counts.items()), Fraction(0))


def _mean(total: Fraction, number: int) -> Fraction:
    """Exact mean; 0 if `number` is 0."""
    return total / number if number else Fraction(0)


def _not_recorded(first: Side, second: Side, causes: Causes) -> Iterable[str]:
    """Yield the inputs that could not be compared, and on how many questions."""
    columns = {"prompts": "prompt_digest", "frames": "frames_digest", "tokens": "kept_digest"}
    words = {
        "model": "the weights",
        "prompts": "the prompts",
        "frames": "the frames",
        "tokens": "which tokens were kept",
    }
    for name in FACTORS:
        known = causes.factors[name]
        lacks = [
            np.full(len(causes.common), not side.facts.checkpoint)
            if name == "model"
            else causes.common[f"{columns[name]}_{x}"].isna().to_numpy()
            for x, side in zip("ab", (first, second), strict=True)
        ]
        number = int(((lacks[0] | lacks[1]) & ~known.other & ~known.same).sum())
        if number:
            who = " and ".join(x for x, own in zip("AB", lacks, strict=True) if own.any())
            yield f"{words[name]} of {who}, on {number:,} of {len(causes.common):,} questions"


def _notes(first: Side, second: Side, causes: Causes) -> Iterable[str]:
    """Yield further remarks for the reader."""
    headline = facts_of(first.cell.benchmark).metrics[0]
    if headline.unit != "question":
        yield (
            f"The headline metric of {first.cell.benchmark}, the {headline.title}, is not defined "
            "for single questions; the accuracy is explained instead."
        )
    if not len(causes.common):
        yield "A and B have no question in common, so no other cause can be determined."
    frames = causes.factors["frames"]
    hashed = [bool(side.job.get("hash_content")) for side in (first, second)]
    same_setting = not any(one.factor == "frames" for one in causes.settings)
    if len(causes.common) and frames.other.all() and same_setting and not all(hashed):
        yield (
            "All clips are treated as different. Without --hash-content a video file is identified "
            "by path, size and time, so a copy on another machine counts as a different file."
        )
    if any(share == LEFT for share in causes.common["cause"]):
        yield (
            "The remainder has several possible causes; runs of this version record prompts, "
            "frames, kept tokens and weights for every answer."
        )


def by_cause(explanation: Explanation) -> Mapping[str, Share]:
    """Map titles to the causes that have at least one question."""
    return {share.cause: share for share in explanation.shares if share.questions}


PUBLISHED = "published"
"""Argument that selects the published score of the other result's setting."""

_NAME = "printed by the papers"


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
    ours = _mean(_sum(rows["score"]), len(rows))
    known = rows[rows["harness_score"].notna()]
    unknown = rows.drop(known.index)
    by_harness = _mean(_sum(known["harness_score"]) + _sum(unknown["score"]), len(rows))
    theirs = Fraction(str(printed))
    sign = -1 if published_first else 1
    paired = known.assign(
        **{f"{name}_{x}": known[name] for name in ("text", "choice", "answer") for x in "ab"},
        **dict(zip(_SCORES[::sign], (known["score"], known["harness_score"]), strict=True)),
    )
    other = paired[paired["score_a"] != paired["score_b"]]
    shares = (
        _share(SCORED, other, sign * (by_harness - ours), num_examples),
        Share(LEFT, sign * (theirs - by_harness), len(rows)),
    )
    results = [
        Result(side.facts.run_id, side.cell.name, ours, len(rows)),
        Result(_NAME, side.cell.name, theirs, None),
    ]
    failed = int(rows["failed"].sum())
    notes = [*caveats([summary]), f"Printed numbers are rounded to 0.1 points; from {source()}."]
    if failed:
        most = 100 * failed / len(rows)
        notes.append(
            f"{failed} of our questions failed and count as wrong: at most {most:.2f} points."
        )
    if not len(known):
        notes.append("The run has no scores by the harness's rules.")
    first, second = reversed(results) if published_first else results
    return Explanation(
        side.cell.benchmark,
        metric_of(side.cell.benchmark).title,
        first,
        second,
        len(rows),
        shares,
        ("prompts, frames, kept tokens, weights and replies of the printed number",),
        (),
        tuple(notes),
    )
