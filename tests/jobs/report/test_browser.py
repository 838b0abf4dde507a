"""The page of a run in a real browser: phones and screens, light and dark, keys alone."""

from __future__ import annotations

from pathlib import Path

import axe_playwright_python
import pytest
from viewed_runs import write_viewed_run

from jobs.report.compare import report_runs

pytestmark = pytest.mark.system

AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"
METHODS = ("tango", "topk", "uniform", "random")
CELLS = ("full", *(f"{name} r={r:g}" for r in (0.1, 0.05, 0.15, 0.2, 0.25) for name in METHODS))
# Pixels of the text of a plot.
SMALLEST_TEXT = 11


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run = write_viewed_run(folder, clips=12, questions=3, cells=CELLS)
    return report_runs([run]).as_uri()


@pytest.fixture
def tab(browser, address):
    contexts = []

    def open_(width, scheme="light"):
        size = {"width": width, "height": 900}
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_axe_finds_nothing(tab, width, scheme):
    page = tab(width, scheme)
    unfold(page)
    page.add_script_tag(path=AXE)
    rules = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}"
    found = page.evaluate(f"axe.run(document, {rules})")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []
    assert len(found["passes"]) > 15


@pytest.mark.parametrize("width", [360, 390, 1440])
def test_nothing_is_wider_than_the_screen_and_plots_read(tab, width):
    page = tab(width)
    for step in (lambda page: None, unfold):
        step(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.evaluate(
        """[...document.querySelectorAll("svg.panel")].map((one) =>
             12 * one.getBoundingClientRect().width / one.viewBox.baseVal.width)"""
    )
    assert len(sizes) > 2
    assert min(sizes) >= SMALLEST_TEXT
    # No text of a panel reaches beyond it.
    assert not page.evaluate(
        """[...document.querySelectorAll("svg.panel")].flatMap((one) => {
             const {left, right} = one.getBoundingClientRect();
             return [...one.querySelectorAll("text")].filter((text) => {
               const box = text.getBoundingClientRect();
               return box.left < left - 1 || box.right > right + 1;
             }).map((text) => text.textContent); })"""
    )


def test_the_first_screen_of_a_phone_has_the_answers_and_the_page_is_short(tab):
    page = tab(390)
    for question in ("Which method is best", "Which differences are significant"):
        assert page.get_by_role("heading", name=question).bounding_box()["y"] < 900
    assert page.evaluate("document.documentElement.scrollHeight") < 8000
