"""A finished sweep, and a browser."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from fake_answers import facts_of, fake_answers
from report_page import SWEEP
from summaries import summarize


@pytest.fixture(scope="module")
def sweep():
    """Summary, facts and answers of four cells, with failed clips and some cache hits."""
    facts = facts_of(*SWEEP, note="untrained weights: the answers are random")
    answers = fake_answers(facts, failed_clips=(2, 5), hits=0.1)
    return summarize(answers, facts), facts, answers


@pytest.fixture(scope="session")
def browser():
    """A Chromium; tests that use it are marked `system`."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def asked(browser):
    """`asked(pages)` opens the viewer; what that gives answers pairs of a link with a list."""
    from served_viewer import served

    with ExitStack() as stack:

        def open_(pages):
            tab = browser.new_page()
            stack.callback(tab.close)
            tab.goto(stack.enter_context(served(pages)))
            tab.wait_for_selector("#main")
            ask = "async (pairs) => (await tango.data.contents(), tango.data.questions(pairs))"
            return lambda pairs: tab.evaluate(ask, [list(pair) for pair in pairs])

        yield open_
