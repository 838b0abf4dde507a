"""An explanation for a terminal: lines of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from jobs.explain.examples import Example
from jobs.explain.explanation import Explanation, Result, rounded_points
from jobs.report.formatting import DASH, aligned_rows, shortened

WIDTH = 80
_MINUS = "\N{MINUS SIGN}"
_REPLY_SHOWN = 24


def render(explanation: Explanation, num_examples: int = 10) -> str:
    """The table of causes, what was not recorded, the settings that differ, and the examples."""
    lines = [
        *_side("A", explanation.first),
        *_side("B", explanation.second),
        f"both  {explanation.common:,} questions of {explanation.benchmark}, {explanation.metric}",
        "",
        *_table(explanation),
    ]
    if explanation.not_recorded:
        lines += ["", "not recorded:", *_bullets(explanation.not_recorded)]
    if explanation.settings:
        lines += ["", "settings that differ (A, B):"]
        lines += _bullets(f"{one.key}: {one.first}, {one.second}" for one in explanation.settings)
    if explanation.notes:
        lines += ["", *(line for note in explanation.notes for line in textwrap.wrap(note, WIDTH))]
    for share in explanation.shares:
        chosen = share.examples[:num_examples]
        if chosen:
            lines += ["", f"{share.cause} (first {len(chosen)} of {share.questions:,}):"]
            lines += [line for example in chosen for line in _example(example)]
    return "\n".join(lines)


def overview(explanations: Sequence[Explanation]) -> str:
    """One line per pair of cells: the difference, and the cause with most points."""
    rows = []
    for one in explanations:
        largest = max(one.shares, key=lambda share: abs(share.points))
        name = one.first.cell
        if one.second.cell != name:
            name += f" | {one.second.cell}"
        rows.append(
            [
                name,
                _percent(one.first.score),
                _percent(one.second.score),
                _points(rounded_points([one.difference])[0]),
                largest.cause if largest.points else DASH,
            ]
        )
    header = ["cell", "A %", "B %", "B - A", "largest cause"]
    return "\n".join(aligned_rows(header, rows, WIDTH))


def _side(letter: str, result: Result) -> Iterator[str]:
    """Two lines about a result."""
    asked = "" if result.questions is None else f", {result.questions:,} questions"
    yield f"{letter}  {shortened(result.name, WIDTH - 3)}"
    yield f"   {shortened(result.cell, 40)}: {_percent(result.score)} %{asked}"


def _table(explanation: Explanation) -> list[str]:
    """The causes with their points, and their sum."""
    points = rounded_points([share.points for share in explanation.shares])
    rows = [
        [
            share.cause,
            _points(value) if share.questions or share.points else DASH,
            f"{share.questions:,}" if share.questions else DASH,
            f"{share.better:,}" if share.better or share.worse else DASH,
            f"{share.worse:,}" if share.better or share.worse else DASH,
        ]
        for share, value in zip(explanation.shares, points, strict=True)
    ]
    total = [_points(sum(points)), "", "", ""]
    header = ["why B - A", "points", "questions", "better", "worse"]
    lines = aligned_rows(header, [*rows, ["together", *total]], WIDTH)
    return [line.rstrip() for line in [*lines[:-1], lines[1], lines[-1]]]


def _example(example: Example) -> Iterator[str]:
    """Two lines about a question: its name and scores, then replies and what differs."""
    known = [one for one in (example.score_a, example.score_b) if one is not None]
    scores = " -> ".join(f"{one:.3g}" for one in known)
    yield f"  {shortened(example.question_id, WIDTH - 4 - len(scores))}  {scores}"
    if len(known) < 2:
        return
    replies = f"{_quoted(example.reply_a)} | {_quoted(example.reply_b)}"
    yield from textwrap.wrap(
        f"{replies}  {example.detail}".rstrip(),
        WIDTH,
        initial_indent="    ",
        subsequent_indent="      ",
    )


def _bullets(sentences: Iterable[str]) -> Iterator[str]:
    """Indented lines."""
    for sentence in sentences:
        yield from textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _percent(score: Fraction) -> str:
    """A share in percent with two digits."""
    return f"{float(100 * score):.2f}"


def _points(hundredths: int) -> str:
    """Hundredths of a point, with their sign."""
    return f"{hundredths / 100:+.2f}".replace("-", _MINUS)


def _quoted(reply: str) -> str:
    """The beginning of a reply on one line."""
    return f'"{shortened(" ".join(reply.split()), _REPLY_SHOWN)}"'
