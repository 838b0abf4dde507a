"""Free-form questions about custom videos, scored if the table has a match."""

from __future__ import annotations

import json

import pytest
from jobs_for_tests import answers_of, run
from numbered_videos import write_clip
from summaries import write_summary

from jobs.config.recipe import parse_job

HEADER = "video,question,options,answer,match,id\n"
CHOICE = "a.mp4,Which?,red|blue,A,,choice\n"


@pytest.fixture
def ask(tmp_path):
    """Write a table about one clip, run it, and return its answers by id and its summary."""
    write_clip(tmp_path / "a.mp4", 24)

    def measure(rows, max_failures=0):
        (tmp_path / "questions.csv").write_text(HEADER + rows)
        recipe = {
            "benchmark": {"name": "custom", "root": str(tmp_path)},
            "model": {"name": "tiny", "num_frames": 4},
            "method": {"name": "full"},
            "executor": "local",
            "max_failures": max_failures,
        }
        _, run_dir = run(parse_job(recipe, "test"), tmp_path, kind="evaluate")
        write_summary(run_dir)
        summary = json.loads((run_dir / "summary.json").read_text())
        return answers_of(run_dir).set_index("question_id"), summary

    return measure


def test_free_form_answers_are_scored_if_a_match_is_given(ask):
    recorded, summary = ask(CHOICE + "a.mp4,What is shown?,,red,,free\n")
    reply = recorded.loc["free", "text"]
    assert reply.split()
    assert (recorded.loc["free", "status"], recorded.loc["free", "correct"]) == ("ok", None)
    assert (summary["num_questions"], summary["num_scored"]) == (2, 1)

    scored, summary = ask(
        CHOICE
        + f"a.mp4,What is shown?,,a zebra|{reply.upper()},exact,right\n"
        + f"a.mp4,What is shown?,,{reply} of a zebra,contains,wrong\n"
        + "a.mp4,What is shown?,,,,free\n"
        + f"gone.mp4,What is shown?,,{reply},contains,gone\n",
        max_failures=1,
    )
    assert scored["correct"].drop("choice").to_dict() == {
        "right": True,
        "wrong": False,
        "free": None,
        "gone": False,
    }
    assert scored.loc["gone", "status"] == "decode_failed"
    choice = ["text", "status", "correct"]
    assert scored.loc["choice", choice].tolist() == recorded.loc["choice", choice].tolist()
    assert (summary["num_questions"], summary["num_scored"]) == (5, 4)
    assert summary["accuracy"] == (1 + bool(scored.loc["choice", "correct"])) / 4
