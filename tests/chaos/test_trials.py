"""One trial with real processes, and the table of many."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.trials.rows import ROWS
from tests.chaos.trials.table import table

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_that_is_killed_at_a_random_moment_and_resumed_is_as_undisturbed(tmp_path):
    raw = tmp_path / "raw.jsonl"
    command = [sys.executable, "-m", "tests.chaos.trials", "SIGKILL of the driver, loop"]
    options = ["--tries", "1", "--seed", "3", "--raw", raw, "--work", tmp_path / "work"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (outcome,) = map(json.loads, raw.read_text().splitlines())
    assert outcome["struck"]
    assert (outcome["wrong"], outcome["exit_code"], outcome["resumes"]) == ("", -9, 1)


def test_the_table_counts_what_was_struck_and_what_was_wrong():
    common = {"row": "SIGTERM, loop", "seconds": 1.5, "resumes": 1, "again": 0}
    outcomes = [
        {**common, "struck": True, "exit_code": 143, "wrong": ""},
        {**common, "struck": True, "exit_code": 0, "wrong": "an answer is lost"},
        {**common, "struck": False, "exit_code": 0, "wrong": ""},
    ]
    lines = table(outcomes).splitlines()
    assert "| SIGTERM, loop | 2 | 0 (1), 143 (1) | 1.5 to 1.5 | 2 | 0 | 1 |" in lines
    assert all(any(line.startswith(f"| {name} |") for line in lines) for name in ROWS)
