"""A finished sweep, and reports without pictures."""

from __future__ import annotations

import io

import pytest
from fake_answers import facts_of, fake_answers
from PIL import Image
from report_page import SWEEP

from jobs.results.summary import summarize


@pytest.fixture(scope="module")
def sweep():
    """Summary, facts and answers of four cells, with failed clips and some cache hits."""
    facts = facts_of(*SWEEP, note="untrained weights: the answers are random")
    answers = fake_answers(facts, failed_clips=(2, 5), hits=0.1)
    return summarize(answers, facts), facts, answers


@pytest.fixture
def blank_figures(monkeypatch):
    """Figures of reports are built but not drawn: a file of one pixel stands for each.

    For tests of what stands beside them, because drawing them takes nine tenths of a report.
    """
    stream = io.BytesIO()
    Image.new("RGB", (1, 1)).save(stream, "png")
    monkeypatch.setattr("jobs.report.plots.png", lambda figure: stream.getvalue())
