"""`tango explain`: explain the score difference of each pair of cells of two results."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from jobs.explain.explanation import (
    PUBLISHED,
    Explanation,
    against_published,
    explained,
    rounded_points,
)
from jobs.explain.sides import Source, chosen_cells, opened, source_of
from jobs.report.formatting import DASH, Table, percent, shortened
from jobs.results.summary import reduce_runs, summarize_reduced
from tango_core.errors import InputError, UserError

WIDTH = 80
_MINUS = "\N{MINUS SIGN}"
_REPLY_SHOWN = 24


def render(explanation: Explanation) -> str:
    """Format an explanation: causes, missing records, differing settings, notes and examples."""
    lines = []
    for letter, result in (("A", explanation.first), ("B", explanation.second)):
        questions = "" if result.questions is None else f", {result.questions:,} questions"
        score = percent(float(result.score), 2)
        lines.append(f"{letter}  {shortened(result.name, WIDTH - 3)}")
        lines.append(f"   {shortened(result.cell, 40)}: {score} %{questions}")
    lines.append(
        f"both  {explanation.common:,} questions of {explanation.benchmark}, {explanation.metric}"
    )
    lines += ["", *_table(explanation)]
    if explanation.not_recorded:
        lines += ["", "not recorded:", *_bullets(explanation.not_recorded)]
    if explanation.settings:
        lines += ["", "settings that differ (A, B):"]
        lines += _bullets(f"{one.key}: {one.first}, {one.second}" for one in explanation.settings)
    for note in explanation.notes:
        lines += ["", *textwrap.wrap(note, WIDTH)]
    for share in explanation.shares:
        if share.examples:
            lines += ["", f"{share.cause} (first {len(share.examples)} of {share.questions:,}):"]
            lines += [line for example in share.examples for line in _example(example)]
    return "\n".join(lines)


def _table(explanation: Explanation) -> list[str]:
    """Table of the causes that have questions, with their points and the sum."""
    points = rounded_points([share.points for share in explanation.shares])
    rows = [
        [share.cause, _points(value), *map(str, (share.questions, share.better, share.worse))]
        for share, value in zip(explanation.shares, points, strict=True)
        if share.questions or share.points
    ]
    rows.append(["together", _points(sum(points)), "", "", ""])
    header = ["why B - A", "points", "questions", "better", "worse"]
    lines = Table(header, rows).plain(max_width=WIDTH, rule=True)
    return [line.rstrip() for line in [*lines[:-1], lines[1], lines[-1]]]


def _example(example: Mapping[str, Any]) -> Iterator[str]:
    """Two lines about a question: its name and scores, then replies and what differs."""
    known = [one for one in (example["score_a"], example["score_b"]) if one is not None]
    scores = " -> ".join(f"{one:.3g}" for one in known)
    yield f"  {shortened(example['question_id'], WIDTH - 4 - len(scores))}  {scores}"
    if len(known) < 2:
        return
    shown = (" ".join(example[name].split()) for name in ("reply_a", "reply_b"))
    replies = " | ".join(f'"{shortened(reply, _REPLY_SHOWN)}"' for reply in shown)
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


def _points(hundredths: int) -> str:
    """Format hundredths of a point with a sign."""
    return f"{hundredths / 100:+.2f}".replace("-", _MINUS)


def overview(explanations: Sequence[Explanation]) -> str:
    """Format one line per pair of cells with the difference and its largest cause."""
    rows = []
    for one in explanations:
        cells = dict.fromkeys((one.first.cell, one.second.cell))
        scores = [percent(float(result.score), 2) for result in (one.first, one.second)]
        largest = max(one.shares, key=lambda share: abs(share.points))
        points = _points(round(10_000 * one.difference))
        rows.append([" | ".join(cells), *scores, points, largest.cause if largest.points else DASH])
    header = ["cell", "A %", "B %", "B - A", "largest cause"]
    lines = Table(header, rows).plain(max_width=WIDTH, rule=True)
    return "\n".join([*lines, "", "use --cell NAME to see the causes and examples of one cell"])


def explanations(
    first: str,
    second: str,
    *,
    cell: str | None = None,
    other_cell: str | None = None,
    benchmark: str | None = None,
    root: str | None = None,
    split: str | None = None,
    examples: int = 10,
) -> list[Explanation]:
    """Explain all pairs of cells of two results.

    Args:
        first: Result A: run directory, URL, harness file, or `published`.
        second: Result B, in the same forms.
        cell: Cell of both results, or only of A if `other_cell` is given.
        other_cell: Cell of B.
        benchmark: Benchmark of a harness file.
        root: Directory of that benchmark's files.
        split: Split of that benchmark.
        examples: Maximum number of examples per cause.

    Raises:
        FileNotFoundError: If there is no such result.
        InputError: If the two results cannot be compared.
    """
    texts = [first, second]
    if texts.count(PUBLISHED) == 2:
        raise InputError(f"{PUBLISHED} {PUBLISHED}: one of the two must be a run or a file")
    with ExitStack() as copies:
        paths = [copies.enter_context(opened(text)) for text in texts if text != PUBLISHED]
        named = {"name": benchmark, "root": root, "split": split}
        sources = [source_of(path, named, paths) for path in paths]
        if len(sources) == 1:
            is_first = first == PUBLISHED
            return _against_published(sources[0], cell or other_cell, is_first, examples)
        pairs = chosen_cells(sources[0], sources[1], cell, other_cell)
        cells = zip(*pairs, strict=True)
        sides = [source.sides(own) for source, own in zip(sources, cells, strict=True)]
        return [explained(a, b, examples) for a, b in zip(*sides, strict=True)]


def _against_published(
    source: Source, wanted: str | None, published_first: bool, examples: int
) -> list[Explanation]:
    """Explain a run, or one of its cells, against published scores."""
    cells = [cell for cell in source.facts.cells if wanted in (None, cell.name)]
    if not cells:
        names = ", ".join(repr(cell.name) for cell in source.facts.cells)
        raise InputError(f"--cell {wanted!r}: {source.facts.run_id} has {names}")
    if source.folder is None:
        raise InputError(
            f"{source.facts.run_id}: a harness file does not record method and frames; convert it "
            f"to a run with `tango import`, and compare the run with {PUBLISHED}"
        )
    summary = summarize_reduced(reduce_runs([source.folder], source.facts.mode), source.facts)
    summaries = {(one.benchmark, one.name): one for one in summary.cells}
    found, reasons = [], []
    for side in source.sides(cells):
        own = summaries[side.cell.benchmark, side.cell.name]
        try:
            found.append(
                against_published(side, own, published_first=published_first, num_examples=examples)
            )
        except UserError as error:
            reasons.append(error)
    if not found:
        raise reasons[0]
    return found
