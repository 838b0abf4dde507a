"""Output of an analysis: figures, tables and one self-contained page.

The titles and captions of all pages are in `templates/texts.yaml`; placeholders such as `{share}`
are filled from `Page.values`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure
from rich.console import Console

from jobs import exit_codes
from jobs.analysis.clips import JobClips
from jobs.config.recipe import Job
from jobs.report.formatting import DASH, Table
from jobs.report.theme import DARK, LIGHT, rendered
from pipeline.storage import Storage

PAGE = "index.html"
_TEXTS = Path(__file__).parent / "templates" / "texts.yaml"
# Number of rows of a table on the page; its CSV file has all rows.
_SHOWN = 60


@dataclass(frozen=True)
class Page:
    """The page of an analysis.

    Attributes:
        name: Name of the analysis in `texts.yaml`.
        findings: Sentences about the results; also printed.
        notes: Sentences about limitations; also printed.
        figures: Name -> function that draws the figure; called once per theme and file.
        tables: Name -> table of texts, also written to a CSV file; see `as_text`.
        values: Values of placeholders in the texts.
        titles: Titles of figures that share the texts of another one: `maps_1` has those of `maps`.
    """

    name: str
    findings: Sequence[str] = ()
    notes: Sequence[str] = ()
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)


def as_text(frame: pd.DataFrame, formats: Mapping[str, str]) -> pd.DataFrame:
    """Format a table's values as text; missing values become a dash.

    Args:
        frame: The table.
        formats: Column -> format specification such as `.3f`; other columns are only converted.
    """

    def texts(column: pd.Series) -> pd.Series:
        spec = formats.get(str(column.name), "")
        return column.map(lambda value: DASH if pd.isna(value) else format(value, spec))

    return frame.astype(object).apply(texts)


def analyze(
    analysis: Callable[[JobClips], Page], job: Job, folder: Path, cache_root: str, console: Console
) -> int:
    """Analyze the clips of a recipe, write the page, and print its findings and notes.

    Args:
        analysis: Makes the page.
        job: Its benchmarks, model, limit, shard and cache are used.
        folder: Receives the page.
        cache_root: Directory or URL of the caches.
        console: Where to print.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.
    """
    clips = JobClips(job, cache_root)
    page = analysis(clips)
    path = write_page(page, folder, clips.subtitle)
    lines = [clips.subtitle, *page.findings, *(f"note: {text}" for text in page.notes)]
    if clips.num_failed:
        lines.append(f"{clips.num_failed} clip(s) could not be decoded and are skipped")
    for line in (*lines, f"page: {path}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return exit_codes.of(clips.num_failed <= job.max_failures)


def write_page(page: Page, folder: Path, subtitle: str) -> Path:
    """Write `index.html` with every figure as PNG and SVG and every table as CSV.

    Files are written atomically, the page last; files of an earlier analysis are replaced.

    Returns:
        Path of the page.
    """
    storage = Storage.at(folder)
    texts = yaml.safe_load(_TEXTS.read_text(encoding="utf-8"))[page.name]

    def filled(own: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        values = {name: str(text).format(**page.values) for name, text in own.items()}
        return {**values, **more}

    figures, tables = [], []
    for name, draw in page.figures.items():
        images = {"light": rendered(draw, LIGHT), "dark": rendered(draw, DARK)}
        storage.write(f"{name}.png", images["light"])
        storage.write(f"{name}.svg", rendered(draw, LIGHT, "svg"))
        more = {theme: base64.b64encode(image).decode() for theme, image in images.items()}
        more |= {"title": page.titles[name]} if name in page.titles else {}
        figures.append(filled(texts["figures"][name.rstrip("_0123456789")], name=name, **more))
    for name, frame in page.tables.items():
        table = Table(list(frame.columns), frame.to_numpy().tolist())
        storage.write(f"{name}.csv", table.csv().encode())
        own = texts["tables"][name]
        shown = {"name": name, "header": table.header, "rows": table.rows}
        tables.append(filled(own, **shown, shown=own.get("shown", _SHOWN)))
    environment = Environment(loader=PackageLoader("jobs.analysis", "templates"), autoescape=True)
    template = environment.get_template("page.html.j2")
    text = template.render(
        page=page, subtitle=subtitle, title=texts["title"], figures=figures, tables=tables
    )
    storage.write(PAGE, text.encode())
    return folder / PAGE
