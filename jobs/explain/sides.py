"""The two results that are compared: what each says about itself, and its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from jobs.config.bounded_yaml import YamlError, load_yaml
from jobs.explain.answers import cell_answers
from jobs.results.facts import JOB_FILE, CellFacts, JobFacts

# Answers of one result that are in memory at once: some hundred megabytes.
_MOST_ANSWERS = 300_000


@dataclass(frozen=True)
class Side:
    """One cell of a run, or of a harness's file.

    Attributes:
        facts: What the run says about itself.
        cell: The cell.
        job: The resolved recipe; empty where there is none.
        answers: One row per question, see `answers.COLUMNS`.
    """

    facts: JobFacts
    cell: CellFacts
    job: Mapping[str, Any]
    answers: pd.DataFrame

    @property
    def is_import(self) -> bool:
        """Whether another program gave the answers, so that little is known of its input."""
        return self.facts.kind == "import"


@dataclass(frozen=True)
class Source:
    """A result whose cell has not been chosen yet.

    Attributes:
        facts: What it says about itself.
        job: The resolved recipe; empty where there is none.
        folder: Run directory; `None` for a harness's file.
        rows: Answers of a harness's file; `None` for a run.
    """

    facts: JobFacts
    job: Mapping[str, Any]
    folder: Path | None = None
    rows: pd.DataFrame | None = None

    def sides(self, cells: Sequence[CellFacts]) -> Iterator[Side]:
        """Some of its cells in order, with the answers.

        The run is read once for as many cells as have `_MOST_ANSWERS` together.

        Raises:
            DamagedFileError: If a file is damaged.
            FileNotFoundError: If there are no answers.
        """
        each = (self.facts.num_answers or 0) / max(1, len(self.facts.cells))
        batch = max(1, int(_MOST_ANSWERS / max(1, each)))
        for start in range(0, len(cells), batch):
            some = cells[start : start + batch]
            names = {(cell.benchmark, cell.name) for cell in some}
            read = {} if self.folder is None else cell_answers(self.folder, names)
            for cell in some:
                rows = self.rows
                if rows is None:
                    rows = read[cell.benchmark, cell.name]
                yield Side(self.facts, cell, self.job, rows)


def raise_if_unscored(side: Side) -> None:
    """Refuse a cell that has no answer with a score.

    Raises:
        ValueError: In one line.
    """
    if not side.answers["score"].notna().any():
        raise ValueError(
            f"{side.facts.run_id}: {side.cell.name!r} on {side.cell.benchmark} has no answer with "
            "a score, so there is no difference to explain; choose another cell with --cell"
        )


def source_of_run(folder: Path) -> Source:
    """A finished run.

    Raises:
        FileNotFoundError: If the directory is no finished run.
        ValueError: If its facts are damaged.
    """
    return Source(JobFacts.load(folder), recipe_in(folder), folder)


def recipe_in(folder: Path) -> Mapping[str, Any]:
    """The resolved recipe of a run; empty where there is none that can be read."""
    try:
        content = load_yaml((folder / JOB_FILE).read_bytes())
    except (OSError, YamlError):
        return {}
    return content if isinstance(content, dict) else {}


def chosen_cells(
    first: Source, second: Source, cell: str | None = None, other: str | None = None
) -> list[tuple[CellFacts, CellFacts]]:
    """The cells that are compared, in pairs.

    Args:
        first: A.
        second: B.
        cell: Name of the cell, of both unless `other` names that of B; `None` for all cells that
            both have under one name. Two results with one cell each are a pair anyhow.
        other: Name of B's cell.

    Raises:
        ValueError: If nothing fits, with the names there are.
    """
    ours, theirs = first.facts.cells, second.facts.cells
    wanted, wanted_other = cell or other, other or cell
    pairs = [
        (one, two)
        for one in ours
        for two in theirs
        if one.benchmark == two.benchmark
        and (one.name == two.name or wanted != wanted_other)
        and wanted in (None, one.name)
        and wanted_other in (None, two.name)
    ]
    if pairs:
        return pairs
    if wanted is None and len(ours) == len(theirs) == 1 and _same_benchmark(ours, theirs):
        return [(ours[0], theirs[0])]
    if wanted is not None and len(theirs) == 1 and other is None:
        pairs = [(one, theirs[0]) for one in ours if one.name == wanted]
    if wanted is not None and len(ours) == 1 and not pairs and other is None:
        pairs = [(ours[0], two) for two in theirs if two.name == wanted]
    pairs = [pair for pair in pairs if pair[0].benchmark == pair[1].benchmark]
    if pairs:
        return pairs
    what = "no cell of A and B has the same name" if wanted is None else "no such pair of cells"
    raise ValueError(
        f"{what}; choose with --cell and --other-cell: A has {_named(ours)}; B has {_named(theirs)}"
    )


def _same_benchmark(ours: tuple[CellFacts, ...], theirs: tuple[CellFacts, ...]) -> bool:
    """Whether both first cells are of one benchmark."""
    return ours[0].benchmark == theirs[0].benchmark


def _named(cells: tuple[CellFacts, ...]) -> str:
    """Names of cells for a message."""
    listed = [f"{cell.name!r} on {cell.benchmark}" for cell in cells]
    return ", ".join(listed[:12]) + (f" and {len(listed) - 12} more" if len(listed) > 12 else "")
