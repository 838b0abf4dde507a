"""The console script, as a person at a terminal meets it, and a finished sweep."""

from __future__ import annotations

import sys

import pytest
from fake_answers import facts_of, fake_answers
from report_page import SWEEP

from jobs.cli.main import main
from jobs.results.summary import summarize


@pytest.fixture
def tango(tmp_path, monkeypatch, capfd):
    """`tango(*arguments)` runs the console script in an empty directory: exit code and output."""
    monkeypatch.chdir(tmp_path)
    # Where a thread is still in native code the command ends its process, which is pytest's here.
    monkeypatch.setattr("jobs.cli.main.leave", sys.exit)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tango", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return call


@pytest.fixture(scope="module")
def sweep():
    """Summary, facts and answers of four cells, with failed clips and some cache hits."""
    facts = facts_of(*SWEEP, note="untrained weights: the answers are random")
    answers = fake_answers(facts, failed_clips=(2, 5), hits=0.1)
    return summarize(answers, facts), facts, answers
