"""A finished sweep."""

from __future__ import annotations

import pytest
from fake_answers import facts_of, fake_answers
from report_page import SWEEP

from jobs.results.summary import summarize


@pytest.fixture(scope="module")
def sweep():
    """Summary, facts and answers of four cells, with failed clips and some cache hits."""
    facts = facts_of(*SWEEP, note="untrained weights: the answers are random")
    answers = fake_answers(facts, failed_clips=(2, 5), hits=0.1)
    return summarize(answers, facts), facts, answers
