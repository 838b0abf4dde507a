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
        name: Of its files, without suffix.
        title: Above it.
        caption: Below it: what is drawn, and how to read it.
        draw: Theme -> figure; called once per theme.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Theme], Figure]


@dataclass(frozen=True)
class Table:
    """A table of a page; also written as CSV with all its rows.

    Attributes:
        name: Of its file, without suffix.
        title: Above it.
        caption: Below it: what the columns mean.
        rows: Column -> cell as text, for every row; all rows have the same columns.
        shown: Rows on the page; the file has all.
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
        title: Of the page.
        subtitle: Model, benchmark and clips.
        findings: What was found, in sentences; also printed.
        notes: What limits it, in sentences; also printed.
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
    """Write the page, and print what was found.

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
    """Write `index.html`, and every figure as PNG and SVG and every table as CSV beside it.

    Every file appears whole, the page last; files of an earlier analysis are replaced.

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
