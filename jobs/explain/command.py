"""`tango explain`: two results, their cells, and an explanation of each pair."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from jobs.explain.causes import causes_of
from jobs.explain.explanation import Explanation, explained
from jobs.explain.published import PUBLISHED, against_published
from jobs.explain.sides import Side, Source, chosen_cells, raise_if_unscored
from jobs.explain.sources import BenchmarkOptions, opened, source_of
from jobs.explain.text import overview, render
from jobs.results.cell_summary import CellSummary
from jobs.results.reduction import reduce_runs
from jobs.results.summary import summarize_reduced


@dataclass(frozen=True)
class HowToExplain:
    """What the command line says beside the two results.

    Attributes:
        cell: Cell of both, or of A alone if `other_cell` names that of B.
        other_cell: Cell of B.
        benchmark: For files of a harness.
        examples: Examples of each cause at most.
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
        first: A: run directory, URL, harness file, or `published`.
        second: B, likewise.
        how: What else is asked for.
        console: Where it is printed.

    Raises:
        FileNotFoundError: If there is no such result.
        ValueError: If the two cannot be compared, in one line.
    """
    found = explanations(first, second, how)
    if how.as_json:
        text = json.dumps([one.to_json() for one in found], indent=2)
    elif len(found) == 1:
        text = render(found[0], how.examples)
    else:
        text = f"{overview(found)}\n\n--cell NAME shows one of them with its causes and examples"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def explanations(first: str, second: str, how: HowToExplain) -> list[Explanation]:
    """The explanations of all pairs of cells that the two results have; see `explain`."""
    texts = [first, second]
    if texts.count(PUBLISHED) == 2:
        raise ValueError(f"{PUBLISHED} {PUBLISHED}: one of the two must be a run or a file")
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
        first_sides = sources[0].sides([one for one, _ in pairs])
        second_sides = sources[1].sides([other for _, other in pairs])
        sides = zip(first_sides, second_sides, strict=True)
        return [_explained(one, other, how) for one, other in sides]


def _explained(first: Side, second: Side, how: HowToExplain) -> Explanation:
    """One pair."""
    raise_if_unscored(first)
    raise_if_unscored(second)
    return explained(first, second, causes_of(first, second), how.examples)


def _against_published(
    sources: Sequence[Source | None], places: Sequence[Path | None], how: HowToExplain
) -> list[Explanation]:
    """A run, or one of its cells, against the printed numbers."""
    source, folder = next(
        (one, path) for one, path in zip(sources, places, strict=True) if one is not None
    )
    assert folder is not None
    wanted = how.cell or how.other_cell
    cells = [cell for cell in source.facts.cells if wanted in (None, cell.name)]
    if not cells:
        names = ", ".join(repr(cell.name) for cell in source.facts.cells)
        raise ValueError(f"--cell {wanted!r}: {source.facts.run_id} has {names}")
    if source.folder is None:
        raise ValueError(
            f"{folder.name}: a harness's file does not name method and frames; make a run of it "
            f"with `tango import`, and compare that with {PUBLISHED}"
        )
    summaries = _summaries(source)
    found, reasons = [], []
    for cell, side in zip(cells, source.sides(cells), strict=True):
        try:
            raise_if_unscored(side)
            found.append(
                against_published(
                    side,
                    summaries[cell.benchmark, cell.name],
                    published_first=sources[0] is None,
                    num_examples=how.examples,
                )
            )
        except ValueError as error:
            reasons.append(error)
    if not found:
        raise reasons[0]
    return found


def _summaries(source: Source) -> dict[tuple[str, str], CellSummary]:
    """The numbers of a run's cells."""
    assert source.folder is not None
    facts = source.facts
    summary = summarize_reduced(reduce_runs([source.folder], facts.mode), facts)
    return {(cell.benchmark, cell.name): cell for cell in summary.cells}
