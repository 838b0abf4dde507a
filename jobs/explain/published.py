"""A run against what a paper prints for its setting: a printed number has no questions to compare.

Two causes can still be told from the run alone: a harness reads the same replies by its own rules,
which the run has beside ours; and the run was asked a part of the benchmark. The rest is left.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from jobs.explain.causes import LEFT, SCORED
from jobs.explain.examples import examples_of
from jobs.explain.explanation import Explanation, Result, Share
from jobs.explain.sides import Side
from jobs.results.answer_columns import metric_of
from jobs.results.cell_summary import CellSummary
from jobs.results.published import caveats, published_scores, source

PUBLISHED = "published"
"""What a user writes for the printed number of the other result's setting."""

_NAME = "printed by the papers"


def against_published(
    side: Side, summary: CellSummary, *, published_first: bool, num_examples: int = 10
) -> Explanation:
    """Explain the difference between a cell and what is printed for its setting.

    Args:
        side: The cell.
        summary: Its numbers.
        published_first: Whether A is the printed number.
        num_examples: Examples of each cause at most.

    Raises:
        ValueError: If nothing is printed for the setting, with the reason.
    """
    printed = published_scores(summary).get(side.cell.benchmark, {}).get("overall")
    if printed is None:
        reasons = " ".join(caveats([summary])) or "no row has its method, retention and options."
        raise ValueError(
            f"{PUBLISHED}: nothing is printed for {side.cell.name!r} of {side.facts.model} on "
            f"{side.cell.benchmark}: {reasons}"
        )
    rows = side.answers[side.answers["score"].notna()]
    ours = _mean(rows["score"].tolist())
    known = rows[rows["harness_score"].notna()]
    by_harness = _mean([*known["harness_score"], *rows.drop(known.index)["score"]])
    theirs = Fraction(str(printed))
    sign = -1 if published_first else 1
    paired = known.assign(
        **{f"{name}_a": known[name] for name in ("text", "score", "choice", "answer")},
        **{f"{name}_b": known[name] for name in ("text", "choice", "answer")},
        score_b=known["harness_score"],
    )
    if published_first:
        paired = paired.rename(columns={"score_a": "score_b", "score_b": "score_a"})
    other = paired[paired["score_a"] != paired["score_b"]]
    change = other["score_b"] - other["score_a"]
    shares = (
        Share(
            SCORED,
            sign * (by_harness - ours),
            len(other),
            int((change > 0).sum()),
            int((change < 0).sum()),
            examples_of(other, SCORED, num_examples),
        ),
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


def _mean(scores: list[float]) -> Fraction:
    """Exact mean."""
    counts = Counter(scores)
    total = sum((Fraction(value) * number for value, number in counts.items()), Fraction(0))
    return total / len(scores)
