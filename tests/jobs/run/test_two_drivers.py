"""Two drivers on one run: the second is refused, or takes the run over and the first ends."""

from __future__ import annotations

import io
import os
import threading
from dataclasses import replace

import pytest
from jobs_for_tests import answers_of, job
from rich.console import Console

from jobs.run.build import build
from jobs.run.driver import execute
from jobs.run.locations import Locations
from pipeline.clips import questions_of
from pipeline.rows import AnswerRow, clips_in
from pipeline.rows import result_of as result_row
from pipeline.storage.leases import LeaseError

# The first driver stands still while the second one does its whole job.
PATIENCE_S = 240


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return job(tmp_path_factory.mktemp("shapes"), executor="local", limit=6)


@pytest.fixture(scope="module")
def built(recipe):
    return build(recipe)


class Executor:
    """Answers clip by clip; after the first one it waits for `go_on`."""

    def __init__(self, text):
        self.text, self.began, self.go_on = text, threading.Event(), threading.Event()

    def __call__(self, plan, settings):
        for row in clips_in(plan.clips):
            about = {key: vars(row)[key] for key in ("benchmark", "video_id", "status", "error")}
            about |= {"cell": "full", "text": self.text}
            ids = [question.id for question in questions_of(row)]
            row = replace(row, decode_video_ms=1.0, encode_ms=2.0, compress_ms={"cache": 3.0})
            yield result_row(row, [AnswerRow(**about, question_id=one) for one in ids])
            self.began.set()
            assert self.go_on.wait(PATIENCE_S)


@pytest.fixture
def drive(recipe, built, tmp_path):
    """`drive(executor)` runs the job in the one run directory."""

    def call(executor, **options):
        return execute(
            recipe, built, "sweep", Locations(tmp_path, **options), tmp_path / "run",
            Console(file=io.StringIO()), run_plan=executor,
        )  # fmt: skip

    return call


@pytest.fixture
def first(drive):
    """A driver at work in a thread: its executor, how it ended, and a function that waits."""
    executor, ended = Executor("first"), []

    def run():
        try:
            ended.append(drive(executor))
        except LeaseError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert executor.began.wait(PATIENCE_S)

    def finish():
        executor.go_on.set()
        thread.join(PATIENCE_S)
        return ended[0]

    yield executor, finish
    finish()


def test_the_second_driver_is_refused_and_the_first_loses_nothing(drive, first, tmp_path):
    second = Executor("second")
    with pytest.raises(LeaseError, match=f"pid {os.getpid()} .*works on this run.*--steal"):
        drive(second)
    assert not second.began.is_set()
    _, finish = first
    assert (finish().num_missing, set(answers_of(tmp_path / "run")["text"])) == (0, {"first"})


def test_a_driver_whose_run_is_stolen_ends_and_no_answer_is_lost_or_doubled(drive, first, tmp_path):
    thief = Executor("thief")
    thief.go_on.set()
    assert drive(thief, steal=True).num_missing == 0
    _, finish = first
    ended = finish()
    assert isinstance(ended, LeaseError)
    assert "taken over" in str(ended)
    answers = answers_of(tmp_path / "run")
    assert set(answers["text"]) == {"thief"}
    assert answers["video_id"].nunique() == 6
    assert not answers.duplicated(["video_id", "question_id"]).any()
