"""What a log says of a job under way, by a clock of ours."""

from __future__ import annotations

import io
import logging
import re
import signal
import sys
from pathlib import Path

import pytest
from fake_clock import FakeClock
from rich.console import Console

from jobs.run import interrupt_message as module
from jobs.run.commands import where
from jobs.run.interrupt_message import all_answers_are_in, interrupt_message, works_on
from jobs.run.progress import JobProgress
from pipeline.rows import AnswerRow, Result
from pipeline.runtime.stopping import Stopped


def answer(**columns):
    return AnswerRow(benchmark="b", video_id="v", **columns)


def result(**changes):
    row = {"benchmark": "b", "video_id": "v", "num_misses": 1, "decode_video_ms": 1.0}
    row |= {"encode_ms": 1.0, "answers": [answer()]}
    return Result(**row | changes)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_log_gets_a_line_every_fifteen_seconds_and_one_at_the_end(lines):
    clock = FakeClock()
    progress = JobProgress(Console(file=io.StringIO()), clock)
    progress.begin(10)
    failed = result(status="decode_failed", error="cut", encode_ms=None, answers=[])
    unanswered = result(answers=[answer(status="answer_failed")])
    for row in (*[result()] * 7, result(num_misses=0, encode_ms=None), failed, unanswered):
        clock.sleep(6)
        progress.result(row)
    progress.stopped()
    assert [line for line in lines() if "clips" in line] == [
        "3 of 10 clips, encoded 3 · cached 0 · answers 3 · failed 0, 42 s left",
        "6 of 10 clips, encoded 6 · cached 0 · answers 6 · failed 0, 24 s left",
        "9 of 10 clips, encoded 7 · cached 1 · answers 8 · failed 1, 6 s left",
        "10 of 10 clips, encoded 8 · cached 1 · answers 9 · failed 2",
    ]


def test_a_terminal_gets_a_live_line_instead(lines):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    progress = JobProgress(console, FakeClock())
    progress.begin(1_000_000)
    for _ in range(2):
        progress.result(result())
    progress.stopped()
    assert lines() == []
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue()).strip().splitlines()[-1]
    assert len(last) <= 80
    for words in ("clips", "2/1000000", "encoded 2 · cached 0 · answers 2"):
        assert words in last, words


def test_ten_failed_clips_are_named_and_the_others_counted(lines):
    progress = JobProgress(Console(quiet=True), FakeClock())
    progress.begin(12)
    unanswered = answer(status="answer_failed", error="out of memory")
    for number in range(12):
        progress.result(result(video_id=f"v{number}", answers=[answer(), unanswered]))
    progress.stopped()
    said = lines()
    assert said[9] == "v9 failed: answer_failed: out of memory"
    assert said[10:] == ["2 more clips failed; failures.parquet names all"]


RUN = Path("runs/my run")
CONTINUE = "finished clips are kept, continue with: tango sweep "
RESUME = "--resume 'runs/my run'"


@pytest.mark.parametrize(
    ("arguments", "record", "said"),
    [
        ("sweep recipe.yaml", lambda: None, "no clip was started"),
        ("report run", lambda: None, "run the command again to complete it"),
        *(
            (given, lambda: works_on(RUN), f"{CONTINUE}recipe.yaml --limit 4 {RESUME}")
            for given in (
                "sweep recipe.yaml --resume other --limit 4",
                "sweep --resume=other recipe.yaml --steal --limit 4",
            )
        ),
        (
            "sweep recipe.yaml",
            lambda: works_on(RUN, recipe=RUN / "job.yaml"),
            f"{CONTINUE}'runs/my run/job.yaml' {RESUME}",
        ),
        (
            "precompute recipe.yaml --shard 0/8",
            lambda: works_on(RUN, caches_only=True),
            "cached clips are kept, continue with: tango precompute recipe.yaml --shard 0/8",
        ),
        (
            "sweep recipe.yaml",
            lambda: all_answers_are_in(RUN),
            "all answers are in runs/my run; for the tables: tango report 'runs/my run', "
            "for MLflow: tango log-run 'runs/my run'",
        ),
    ],
)
def test_the_command_that_goes_on_is_ready_to_be_pasted(monkeypatch, arguments, record, said):
    monkeypatch.setattr(module, "_text", None)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/tango", *arguments.split()])
    record()
    assert interrupt_message(Stopped(signal.SIGINT)) == f"tango: interrupted; {said}"
    assert interrupt_message(Stopped(signal.SIGTERM)) == f"tango: stopped by SIGTERM; {said}"


@pytest.mark.parametrize(
    ("uri", "first", "page"),
    [
        ("https://me:word@host/mlflow/", [], "https://***@host/mlflow"),
        (
            "sqlite:///runs/mlflow.db",
            ["MLflow:  mlflow ui --backend-store-uri sqlite:///runs/mlflow.db"],
            "http://127.0.0.1:5000",
        ),
    ],
)
def test_a_run_on_a_server_has_a_page_and_a_store_a_command(uri, first, page):
    assert where(uri, "12ab") == [*first, f"run:     {page}/#/runs/12ab"]
