"""Output of an analysis: figures, tables and one self-contained page."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure
from rich.console import Console

from jobs import exit_codes
from jobs.analysis.clips import JobClips
from jobs.report.formatting import Table as TextTable
from jobs.report.theme import DARK, LIGHT, Theme, png, svg
from pipeline.storage import Storage

PAGE = "index.html"


@dataclass(frozen=True)
class Drawing:
    """A figure of a page.

    Attributes:
        name: File name without suffix.
        title: Title above the figure.
        caption: Explanation below the figure.
        draw: Draws the figure in a theme; called once per theme.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Theme], Figure]


@dataclass(frozen=True)
class Table:
    """A table of a page, also written to a CSV file.

    Attributes:
        name: File name without suffix.
        title: Title above the table.
        caption: Explanation of the columns below the table.
        rows: One mapping from column to text per row; all rows have the same columns.
        shown: Number of rows on the page; the CSV file has all rows.
    """

    name: str
    title: str
    caption: str
    rows: Sequence[Mapping[str, str]]
    shown: int = 60

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.rows[0]) if self.rows else []


@dataclass(frozen=True)
class Page:
    """The page of an analysis.

    Attributes:
        title: Title of the page.
        subtitle: Model, benchmark and clips.
        findings: Sentences about the results; also printed.
        notes: Sentences about limitations; also printed.
        drawings: Figures.
        tables: Tables.
    """

    title: str
    subtitle: str
    findings: Sequence[str] = ()
    notes: Sequence[str] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Table] = ()


def finish(page: Page, clips: JobClips, folder: Path, console: Console) -> int:
    """Write the page, and print its findings and notes.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.
    """
    path = write_page(page, folder)
    lines = [page.subtitle, *page.findings, *(f"note: {text}" for text in page.notes)]
    if clips.num_failed:
        lines.append(f"{clips.num_failed} clip(s) could not be decoded and are skipped")
    for line in (*lines, f"page: {path}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return exit_codes.of(clips.num_failed <= clips.job.max_failures)


def write_page(page: Page, folder: Path) -> Path:
    """Write `index.html` with every figure as PNG and SVG and every table as CSV.

    Files are written atomically, the page last; files of an earlier analysis are replaced.

    Returns:
        Path of the page.
    """
    storage = Storage.at(folder)
    figures = []
    for drawing in page.drawings:
        light = drawing.draw(LIGHT)
        images = [png(light), png(drawing.draw(DARK))]
        storage.write(f"{drawing.name}.png", images[0])
        storage.write(f"{drawing.name}.svg", svg(light))
        encoded = (base64.b64encode(image).decode() for image in images)
        figures.append({"drawing": drawing, **dict(zip(("light", "dark"), encoded, strict=True))})
    for table in page.tables:
        rows = [list(row.values()) for row in table.rows]
        storage.write(f"{table.name}.csv", TextTable(table.columns, rows).csv().encode())
    environment = Environment(loader=PackageLoader("jobs.analysis", "templates"), autoescape=True)
    text = environment.get_template("page.html.j2").render(page=page, figures=figures)
    storage.write(PAGE, text.encode())
    return folder / PAGE
