"""What an analysis leaves: files, escaped names, both themes."""

from __future__ import annotations

import csv
import re

import pandas as pd

from jobs.analysis.page import Page, as_text, write_page
from jobs.report.theme import new_figure

HOSTILE = "<script>alert(1)</script> $\\frac{1$ of a name"


def drawn():
    figure, (panel,) = new_figure((2.0, 1.5))
    panel.set_title(HOSTILE)
    panel.plot([0, 1], [1, 0])
    return figure


def test_figures_tables_and_page_are_written_and_names_are_only_names(tmp_path):
    rows = [("=1+1", 2.0), (HOSTILE, None), *[("x", 3.0)] * 20, ("last", 4.0)]
    table = as_text(pd.DataFrame(rows, columns=["clip", "pieces"]), {"pieces": ".1f"})
    page = Page(
        "clusters",
        [HOSTILE],
        ["a note"],
        {"maps_1": drawn},
        {"fragmentation": table},
        titles={"maps_1": HOSTILE},
    )
    path = write_page(page, tmp_path / "out", HOSTILE)
    names = ["fragmentation.csv", "index.html", "maps_1.png", "maps_1.svg"]
    assert sorted(file.name for file in path.parent.iterdir()) == names
    text = path.read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 3
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)  # nothing is fetched
    assert text.count("data:image/png;base64,") == 2  # light and dark
    assert "with all 23 rows" in text
    assert "<td>last</td>" not in text
    assert (path.parent / "maps_1.png").read_bytes().startswith(b"\x89PNG")
    svg = (path.parent / "maps_1.svg").read_text()
    assert "<svg" in svg
    write_page(page, tmp_path / "out", HOSTILE)
    assert (path.parent / "maps_1.svg").read_text() == svg
    with (path.parent / "fragmentation.csv").open() as file:
        found = list(csv.reader(file))
    assert found[-1] == ["last", "4.0"]
    assert found[:3] == [["clip", "pieces"], ["'=1+1", "2.0"], [HOSTILE, "-"]]
