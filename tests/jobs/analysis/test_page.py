"""What an analysis leaves: files, escaped names, both themes."""

from __future__ import annotations

import csv
import re

from jobs.analysis.page import Drawing, Page, Table, write_page
from jobs.report.theme import new_figure

HOSTILE = "<script>alert(1)</script> $x$"


def drawn(theme):
    figure, (panel,) = new_figure((2.0, 1.5), theme)
    panel.set_title(HOSTILE)
    panel.plot([0, 1], [1, 0])
    return figure


def page_of(title="Analysis"):
    return Page(
        title=title,
        subtitle=HOSTILE,
        findings=[HOSTILE],
        notes=["a note"],
        drawings=[Drawing("curve", HOSTILE, HOSTILE, drawn)],
        tables=[
            Table(
                "numbers",
                HOSTILE,
                "",
                [{"name": "=1+1", "x": "2"}, {"name": HOSTILE, "x": "3"}],
                shown=1,
            )
        ],
    )


def test_figures_tables_and_page_are_written_and_names_are_only_names(tmp_path):
    path = write_page(page_of(), tmp_path / "out")
    assert sorted(file.name for file in path.parent.iterdir()) == [
        *("curve.png", "curve.svg", "index.html", "numbers.csv")
    ]
    text = path.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)  # nothing is fetched
    assert text.count("data:image/png;base64,") == 2  # light and dark
    assert "with all 2 rows" in text
    assert (path.parent / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (path.parent / "curve.svg").read_text()
    with (path.parent / "numbers.csv").open() as file:
        assert list(csv.reader(file)) == [["name", "x"], ["'=1+1", "2"], [HOSTILE, "3"]]


def test_the_same_analysis_gives_the_same_files(tmp_path):
    one, two = (write_page(page_of(), tmp_path / name).parent for name in ("a", "b"))
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes(), file.name


def test_a_later_analysis_replaces_the_page(tmp_path):
    write_page(page_of("First"), tmp_path)
    assert "Second" in write_page(page_of("Second"), tmp_path).read_text()
    assert not list(tmp_path.glob(".*"))  # no leftovers
