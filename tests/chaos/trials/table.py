"""The Markdown of all trials that were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.chaos.trials.rows import CELLS, CLIPS, ROWS

INTRO = f"""# Trials with real processes

Made by `python -m tests.chaos.trials`: {CLIPS} generated clips, {CELLS} methods, the embedded
model, on two cores, some of the tries beside up to forty busy processes. Something happens to a
`tango sweep` at a random moment, drawn from the seed; then it is resumed in a loop until it ends
well. After every attempt and at the end the oracle of the simulator judges the files: every planned
answer once, equal to an undisturbed run, token sets bit for bit, counts as on disk, nothing half
written, nothing done again that was there. *Wrong* counts trials in which it was not so. Drivers
are forked from a process that has imported the libraries.

| what happens | tries | exit codes (how often) | s to its end | resumes | encoded again | wrong |
|---|---|---|---|---|---|---|
"""


def table(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """The page.

    Args:
        outcomes: As `__main__.Outcome` has them, and `row`, the name of the row.
    """
    lines = []
    for name in ROWS:
        found = [one for one in outcomes if one["row"] == name and one["struck"]]
        if not found:
            lines.append(f"| {name} | 0 | | | | | |")
            continue
        codes = [one["exit_code"] for one in found]
        counts = ", ".join(f"{code} ({codes.count(code)})" for code in sorted(set(codes)))
        seconds = sorted(one["seconds"] for one in found)
        shown = (
            name, len(found), counts, f"{seconds[0]:g} to {seconds[-1]:g}",
            sum(one["resumes"] for one in found), sum(one["again"] for one in found),
            sum(bool(one["wrong"]) for one in found),
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, shown))} |")
    return INTRO + "\n".join(lines) + "\n"
