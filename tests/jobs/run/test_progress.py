"""What a log says of a job under way, by a clock of ours."""

from __future__ import annotations

import io
import logging

import pytest
from fake_clock import FakeClock
from rich.console import Console

from jobs.run.progress import JobProgress, is_decoded


def result(**changes):
    row = {"status": "ok", "num_misses": 1, "decode_video_ms": 1.0, "encode_ms": 1.0}
    return {**row, "answers": [{"status": "ok"}], **changes}


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_log_gets_a_line_every_fifteen_seconds_and_one_at_the_end(lines):
    clock = FakeClock()
    with JobProgress(10, Console(file=io.StringIO()), clock) as progress:
        for _ in range(10):
            clock.sleep(6)
            progress.add(result())
    assert lines() == [
        "3 of 10 clips, encoded 3 · cached 0 · answers 3 · failed 0, 42 s left",
        "6 of 10 clips, encoded 6 · cached 0 · answers 6 · failed 0, 24 s left",
        "9 of 10 clips, encoded 9 · cached 0 · answers 9 · failed 0, 6 s left",
        "10 of 10 clips, encoded 10 · cached 0 · answers 10 · failed 0",
    ]


def test_cached_and_failed_clips_are_counted(lines):
    failed = result(status="decode_failed", encode_ms=None, answers=[])
    unanswered = result(answers=[{"status": "answer_failed"}])
    with JobProgress(3, Console(file=io.StringIO()), FakeClock()) as progress:
        for row in (result(num_misses=0, encode_ms=None), failed, unanswered):
            progress.add(row)
    assert lines()[-1] == "3 of 3 clips, encoded 1 · cached 1 · answers 2 · failed 2"


def test_a_terminal_gets_a_live_line_instead(lines):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with JobProgress(1, console, FakeClock()) as progress:
        progress.add(result())
    assert lines() == []
    assert "1/1" in console.file.getvalue()


def test_a_clip_that_could_not_be_decoded_was_not_decoded():
    assert is_decoded(result())
    assert is_decoded(result(status="encode_failed"))
    assert not is_decoded(result(status="decode_failed"))
    assert not is_decoded(result(decode_video_ms=None))
