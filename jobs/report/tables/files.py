"""All tables of a report as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.report.formatting import Table, latex_notes, markdown_notes
from jobs.report.tables.breakdowns import (
    all_scores,
    breakdowns_csv,
    breakdowns_markdown,
    differences_csv,
    scores_csv,
)
from jobs.report.tables.cells import cells_csv, cells_latex, cells_markdown, grid_markdown
from jobs.report.tables.confusion import confusion_markdown, confusion_table
from jobs.report.tables.paper import paper_table
from jobs.results.cell_summary import CellSummary
from jobs.results.reduction import Reduction


def write_tables(
    cells: Sequence[CellSummary], folder: Path, *, published: bool, notes: Sequence[str] = ()
) -> None:
    """Write `table.*`, `paper_table.*`, `grid.md` and `breakdowns.*`.

    `scores.*` is written too where a benchmark has several metrics, and `differences_by_group.csv`
    where cells were compared with all tokens.

    Args:
        cells: Cells of one run or of several.
        folder: Receives the files.
        published: Set the numbers of the Tango paper beside ours in `paper_table.*`.
        notes: Sentences to print under `table.*` and `paper_table.*`.
    """
    paper = paper_table(cells, published=published, notes=notes)
    texts = {
        "table.md": "\n\n".join([cells_markdown(cells), *markdown_notes(notes)]) + "\n",
        "table.csv": cells_csv(cells),
        "table.tex": "\n".join([cells_latex(cells), *latex_notes(notes)]) + "\n",
        "paper_table.md": paper.markdown() + "\n",
        "paper_table.csv": paper.csv(),
        "paper_table.tex": paper.latex() + "\n",
        "grid.md": grid_markdown(cells) + "\n",
        "breakdowns.md": breakdowns_markdown(cells) + "\n",
        "breakdowns.csv": breakdowns_csv(cells),
    }
    if any(len(cell.scores) > 1 for cell in cells):
        texts |= {"scores.md": all_scores(cells).markdown() + "\n", "scores.csv": scores_csv(cells)}
    if differences := differences_csv(cells):
        texts["differences_by_group.csv"] = differences
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_confusion(
    cells: Sequence[CellSummary], reductions: Sequence[Reduction], group: str, folder: Path
) -> None:
    """Write `confusion.md` and `confusion.csv`.

    Args:
        cells: Cells of one run or of several.
        reductions: Answers of the run of every cell.
        group: Group of the questions.
        folder: Receives the files.

    Raises:
        ValueError: As `confusion_table`.
    """
    table = confusion_table(cells, reductions, group)
    markdown = confusion_markdown(table, group)
    (folder / "confusion.md").write_text(markdown + "\n", encoding="utf-8")
    rows_of_table = table.itertuples(index=False, name=None)
    text = Table(list(table.columns), list(rows_of_table)).csv()
    (folder / "confusion.csv").write_text(text, encoding="utf-8")
