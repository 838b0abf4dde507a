"""`tango explain`: explain the score difference of each pair of cells of two results."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console

from jobs.explain.causes import causes_of
from jobs.explain.explanation import (
    PUBLISHED,
    Explanation,
    Result,
    against_published,
    explained,
    rounded_points,
)
from jobs.explain.sides import (
    BenchmarkOptions,
    Source,
    chosen_cells,
    opened,
    source_of,
)
from jobs.report.formatting import DASH, Table, shortened
from jobs.results.reduction import reduce_runs
from jobs.results.summary import summarize_reduced
from tango_core.errors import InputError, UserError

WIDTH = 80
_MINUS = "\N{MINUS SIGN}"
_REPLY_SHOWN = 24


def render(explanation: Explanation, num_examples: int = 10) -> str:
    """Format an explanation: causes, missing records, differing settings, notes and examples."""
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
    """Format one line per pair of cells with the difference and its largest cause."""
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
    return "\n".join(Table(header, rows).aligned(WIDTH))


def _side(letter: str, result: Result) -> Iterator[str]:
    """Two lines that describe a result."""
    questions = "" if result.questions is None else f", {result.questions:,} questions"
    yield f"{letter}  {shortened(result.name, WIDTH - 3)}"
    yield f"   {shortened(result.cell, 40)}: {_percent(result.score)} %{questions}"


def _table(explanation: Explanation) -> list[str]:
    """Table of the causes with their points and the sum."""
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
    lines = Table(header, [*rows, ["together", *total]]).aligned(WIDTH)
    return [line.rstrip() for line in [*lines[:-1], lines[1], lines[-1]]]


def _example(example: Mapping[str, Any]) -> Iterator[str]:
    """Two lines about a question: its name and scores, then replies and what differs."""
    known = [one for one in (example["score_a"], example["score_b"]) if one is not None]
    scores = " -> ".join(f"{one:.3g}" for one in known)
    yield f"  {shortened(example['question_id'], WIDTH - 4 - len(scores))}  {scores}"
    if len(known) < 2:
        return
    replies = f"{_quoted(example['reply_a'])} | {_quoted(example['reply_b'])}"
    yield from textwrap.wrap(
        f"{replies}  {example['detail']}".rstrip(),
        WIDTH,
        initial_indent="    ",
        subsequent_indent="      ",
    )


def _bullets(sentences: Iterable[str]) -> Iterator[str]:
    """Indented and wrapped lines."""
    for sentence in sentences:
        yield from textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _percent(score: Fraction) -> str:
    """Format a share in percent with two decimals."""
    return f"{float(100 * score):.2f}"


def _points(hundredths: int) -> str:
    """Format hundredths of a point with a sign."""
    return f"{hundredths / 100:+.2f}".replace("-", _MINUS)


def _quoted(reply: str) -> str:
    """Format the beginning of a reply on one line."""
    return f'"{shortened(" ".join(reply.split()), _REPLY_SHOWN)}"'


@dataclass(frozen=True)
class HowToExplain:
    """Options of `tango explain`.

    Attributes:
        cell: Cell of both results, or only of A if `other_cell` is given.
        other_cell: Cell of B.
        benchmark: Benchmark of a harness file.
        examples: Maximum number of examples per cause.
        as_json: Print JSON.
    """

    cell: str | None = None
    other_cell: str | None = None
    benchmark: BenchmarkOptions = field(default_factory=BenchmarkOptions)
    examples: int = 10
    as_json: bool = False


def explain(first: str, second: str, how: HowToExplain, console: Console) -> None:
    """Print why the scores of two results differ.

    Args:
        first: Result A: run directory, URL, harness file, or `published`.
        second: Result B, in the same forms.
        how: Further options.
        console: Console for the output.

    Raises:
        FileNotFoundError: If there is no such result.
        InputError: If the two results cannot be compared.
    """
    found = explanations(first, second, how)
    if how.as_json:
        text = json.dumps([one.to_json() for one in found], indent=2)
    elif len(found) == 1:
        text = render(found[0], how.examples)
    else:
        text = f"{overview(found)}\n\nuse --cell NAME to see the causes and examples of one cell"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def explanations(first: str, second: str, how: HowToExplain) -> list[Explanation]:
    """Explain all pairs of cells of two results; see `explain`."""
    texts = [first, second]
    if texts.count(PUBLISHED) == 2:
        raise InputError(f"{PUBLISHED} {PUBLISHED}: one of the two must be a run or a file")
    with ExitStack() as copies:
        places = [
            None if text == PUBLISHED else copies.enter_context(opened(text)) for text in texts
        ]
        sources = [
            None if path is None else source_of(path, how.benchmark, places[1 - at])
            for at, path in enumerate(places)
        ]
        if sources[0] is None or sources[1] is None:
            return _against_published(sources, places, how)
        pairs = chosen_cells(sources[0], sources[1], how.cell, how.other_cell)
        ours = sources[0].sides([one for one, _ in pairs])
        theirs = sources[1].sides([other for _, other in pairs])
        return [
            explained(one, two, causes_of(one, two), how.examples)
            for one, two in zip(ours, theirs, strict=True)
        ]


def _against_published(
    sources: Sequence[Source | None], places: Sequence[Path | None], how: HowToExplain
) -> list[Explanation]:
    """Explain a run, or one of its cells, against published scores."""
    source, folder = next(
        (one, path) for one, path in zip(sources, places, strict=True) if one is not None
    )
    assert folder is not None
    wanted = how.cell or how.other_cell
    cells = [cell for cell in source.facts.cells if wanted in (None, cell.name)]
    if not cells:
        names = ", ".join(repr(cell.name) for cell in source.facts.cells)
        raise InputError(f"--cell {wanted!r}: {source.facts.run_id} has {names}")
    if source.folder is None:
        raise InputError(
            f"{folder.name}: a harness file does not record method and frames; convert it to a run "
            f"with `tango import`, and compare the run with {PUBLISHED}"
        )
    summary = summarize_reduced(reduce_runs([source.folder], source.facts.mode), source.facts)
    numbers = {(cell.benchmark, cell.name): cell for cell in summary.cells}
    found, reasons = [], []
    for side in source.sides(cells):
        cell = numbers[side.cell.benchmark, side.cell.name]
        first = sources[0] is None
        try:
            found.append(
                against_published(side, cell, published_first=first, num_examples=how.examples)
            )
        except UserError as error:
            reasons.append(error)
    if not found:
        raise reasons[0]
    return found
