"""What a reader of a table must know besides its figures, one sentence each."""

from __future__ import annotations

from collections.abc import Iterable

from jobs.facts import JobFacts


def left_out_notes(runs: Iterable[JobFacts]) -> list[str]:
    """Methods that recipes name and the tables do not hold, because the model cannot run them."""
    sentences = (
        f"Left out on {facts.model}: {entry.name}, retention {100 * entry.retention:g} %: "
        f"{entry.reason}."
        for facts in runs
        for entry in facts.left_out
    )
    return list(dict.fromkeys(sentences))
