"""What every analysis leaves: figures, tables and one page that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure

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
        columns: Their names.
        rows: Cells as text.
        shown: Rows on the page; the file has all.
    """

    name: str
    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    shown: int = 60


@dataclass(frozen=True)
class Page:
    """An analysis, finished.

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
    tables: Sequence[Table] = field(default=())

    @property
    def lines(self) -> list[str]:
        """What is printed."""
        return [self.subtitle, *self.findings, *(f"note: {text}" for text in self.notes)]


def write_page(page: Page, folder: Path) -> Path:
    """Write `index.html`, and every figure as PNG and SVG and every table as CSV beside it.

    Every file appears whole, the page last; files of an earlier analysis are replaced.

    Returns:
        Path of the page.
    """
    storage = Storage.at(folder)
    figures = []
    for drawing in page.drawings:
        light, dark = drawing.draw(LIGHT), drawing.draw(DARK)
        image = png(light)
        storage.write(f"{drawing.name}.png", image)
        storage.write(f"{drawing.name}.svg", svg(light))
        figures.append(
            {
                "drawing": drawing,
                "light": base64.b64encode(image).decode(),
                "dark": base64.b64encode(png(dark)).decode(),
            }
        )
    for table in page.tables:
        storage.write(f"{table.name}.csv", TextTable(table.columns, table.rows).csv().encode())
    environment = Environment(loader=PackageLoader("jobs.analysis", "templates"), autoescape=True)
    text = environment.get_template("page.html.j2").render(page=page, figures=figures)
    storage.write(PAGE, text.encode())
    return folder / PAGE
