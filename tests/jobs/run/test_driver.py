"""From a recipe to the files of a run; full disks, stores that go away, and a second driver."""

from __future__ import annotations

import errno
import io
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_clock import START, FakeClock
from faulty_storage import opener
from jobs_for_tests import answers_of, job, what_was_said
from rich.console import Console
from summaries import write_summary

from jobs.results.facts import JobFacts
from jobs.run.build import build
from jobs.run.commands import counted, exit_code
from jobs.run.driver import execute
from jobs.run.locations import Locations
from pipeline.clips import questions_of
from pipeline.errors import StoreError
from pipeline.rows import AnswerRow, clips_in
from pipeline.rows import result_of as result_row
from pipeline.runtime.clock import SYSTEM_CLOCK
from pipeline.storage.leases import LeaseError
from pipeline.storage.objects import PAUSES_S

SECONDS_PER_CLIP = 4.0
# The first driver stands still while the second one does its whole job.
PATIENCE_S = 240


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return job(tmp_path_factory.mktemp("shapes"), executor="local", limit=4)


@pytest.fixture(scope="module")
def built(recipe):
    return build(recipe)


class Executor:
    """Answers every question of a clip with "A"; the clips of `failing` cannot be decoded.

    `plans` holds what it was asked to run, `dies_after` how many clips it gives before an error.
    """

    def __init__(self, clock, failing=(), dies_after=None):
        self.clock, self.failing, self.dies_after = clock, failing, dies_after
        self.plans = []

    def __call__(self, plan, settings):
        self.plans.append(plan)
        for index, row in enumerate(clips_in(plan.clips)):
            if index == self.dies_after:
                raise ConnectionError("the cluster is gone")
            self.clock.sleep(SECONDS_PER_CLIP)
            if index in self.failing:
                row = row.failed("decode_failed", "not a video")
            else:
                row = replace(row, decode_video_ms=1.0, encode_ms=2.0, compress_ms={"cache": 3.0})
            yield result_row(row, [self.answer(row, one.id) for one in questions_of(row)])

    def answer(self, row, question, text="A"):
        about = {key: vars(row)[key] for key in ("benchmark", "video_id", "status", "error")}
        return AnswerRow(**about, question_id=question, cell="full", text=text)


@pytest.fixture
def run(recipe, built, tmp_path):
    """`run(executor, clock)` executes the job in one run directory."""
    run_dir = tmp_path / "run"

    def call(executor, clock, *, job=recipe, kind="sweep", console=None, **options):
        locations = Locations(tmp_path, **options)
        console = console or Console(file=io.StringIO())
        return execute(
            job, built, kind, locations, run_dir, console, run_plan=executor, clock=clock
        )

    return call


def test_answers_failures_and_facts_are_in_the_directory(run, recipe, tmp_path):
    clock = FakeClock()
    job_result = run(Executor(clock, failing=[1]), clock)
    counts = (job_result.num_clips, job_result.num_failed_clips, job_result.num_decoded)
    assert counts == (4, 1, 3)
    assert (job_result.num_encoded, job_result.num_computed, job_result.num_hits) == (3, 3, 0)
    answers = answers_of(tmp_path / "run")
    assert answers["video_id"].nunique() == 4
    (failure,) = pq.read_table(tmp_path / "run" / "failures.parquet").to_pylist()
    assert (failure["status"], failure["error"]) == ("decode_failed", "not a video")
    facts = JobFacts.load(tmp_path / "run")
    assert facts == job_result.facts
    assert (facts.wall_s, facts.float32_products["matmul"]) == (4 * SECONDS_PER_CLIP, "ieee")
    assert facts.started_at == START.isoformat(timespec="seconds")
    assert (tmp_path / "run" / "job.yaml").read_text() == recipe.to_yaml()


def test_a_continued_run_asks_only_for_what_is_missing_and_has_no_wall_time(run, tmp_path):
    clock = FakeClock()
    run(Executor(clock, failing=[0, 2]), clock)
    (tmp_path / "run" / "summary.json").write_text("{}")
    again = Executor(clock)
    job_result = run(again, clock)
    assert not (tmp_path / "run" / "summary.json").exists(), "it is of the attempt before"
    (plan,) = again.plans
    assert (plan.clips.num_rows, job_result.num_clips) == (2, 2)
    assert job_result.facts.wall_s is None
    answers = answers_of(tmp_path / "run")
    assert set(answers["status"]) == {"ok"}
    assert answers["video_id"].nunique() == 4
    assert not answers.duplicated(["video_id", "question_id"]).any()


def test_what_came_before_a_lost_cluster_is_kept_and_not_asked_again(run, tmp_path):
    clock = FakeClock()
    with pytest.raises(ConnectionError):
        run(Executor(clock, dies_after=3), clock)
    assert answers_of(tmp_path / "run")["video_id"].nunique() == 3
    assert not (tmp_path / "run" / "facts.json").exists(), "it is not finished"
    again = Executor(clock)
    assert run(again, clock).num_clips == 1


def test_a_full_disk_ends_the_job_and_a_later_one_finishes_it(run, tmp_path):
    full = {"is": True}

    def refuse_parts(path):
        if full["is"] and "/part-00000-" in path:
            raise OSError(28, "No space left on device")

    clock = FakeClock()
    with pytest.raises(OSError, match="No space left"):
        run(Executor(clock), clock, open_storage=opener(refuse_parts))
    assert not list((tmp_path / "run" / "answers").glob("*"))
    full["is"] = False
    assert run(Executor(clock), clock, open_storage=opener(refuse_parts)).num_clips == 4


def test_every_file_of_a_run_goes_through_the_storage(run, tmp_path):
    written = []
    clock = FakeClock()
    run(Executor(clock), clock, open_storage=opener(written.append))
    files = {str(path) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    lease = {path for path in written if path.rpartition("/")[2].startswith(".")}
    (number,) = files - (set(written) - lease)
    assert "/.lease-" in number, "of the lease its number stays"
    assert set(written) - lease <= files


def test_a_job_that_only_fills_caches_writes_no_answers(run, tmp_path):
    clock = FakeClock()
    executor = Executor(clock)
    run(executor, clock, kind="precompute")
    assert not executor.plans[0].answer
    assert not (tmp_path / "run" / "answers").exists()


def test_an_answer_that_is_not_in_the_files_is_named_and_fails(run, recipe, tmp_path, caplog):
    class Careless(Executor):
        """Deletes a part of the run while it works."""

        def __call__(self, plan, settings):
            for index, result in enumerate(super().__call__(plan, settings)):
                if index == 3:
                    (part,) = (tmp_path / "run" / "answers").glob("*.parquet")
                    part.unlink()
                yield result

    clock = FakeClock()
    job_result = run(Careless(clock), clock)
    assert job_result.num_clips == 4
    assert job_result.num_missing > 0
    summary = write_summary(tmp_path / "run")
    assert summary.counts.num_failed == job_result.num_missing
    assert f"{job_result.num_missing} planned answer(s) are missing" in caplog.text
    assert f"{job_result.num_missing} answers missing" in counted(job_result)
    assert exit_code(recipe, job_result, tmp_path / "run") == 1
    assert run(Executor(clock), clock).num_missing == 0
    assert write_summary(tmp_path / "run").counts.num_failed == 0
    planned = JobFacts.load(tmp_path / "run").num_answers
    assert planned == summary.counts.num_different * len(summary.cells)


def test_a_continued_run_is_unfinished_until_all_is_asked_again(run, tmp_path):
    clock = FakeClock()
    run(Executor(clock, failing=[0, 2]), clock)
    with pytest.raises(ConnectionError):
        run(Executor(clock, dies_after=1), clock)
    assert not (tmp_path / "run" / "facts.json").exists()


class Waiting(Executor):
    """Answers with `text`; after every clip it waits for `go_on`."""

    def __init__(self, text):
        super().__init__(FakeClock())
        self.text, self.began, self.go_on = text, threading.Event(), threading.Event()

    def __call__(self, plan, settings):
        for result in super().__call__(plan, settings):
            yield result
            self.began.set()
            assert self.go_on.wait(PATIENCE_S)

    def answer(self, row, question):
        return super().answer(row, question, self.text)


@pytest.fixture
def first(run):
    """A driver at work in a thread: a function that lets it go on, and returns how it ended."""
    executor, ended = Waiting("first"), []

    def drive():
        try:
            ended.append(run(executor, SYSTEM_CLOCK))
        except LeaseError as error:
            ended.append(error)

    thread = threading.Thread(target=drive)
    thread.start()
    assert executor.began.wait(PATIENCE_S)

    def finish():
        executor.go_on.set()
        thread.join(PATIENCE_S)
        return ended[0]

    yield finish
    finish()


def test_the_second_driver_is_refused_and_the_first_loses_nothing(run, first, tmp_path):
    second = Waiting("second")
    with pytest.raises(LeaseError, match=f"pid {os.getpid()} .*works on this run.*--steal"):
        run(second, SYSTEM_CLOCK)
    assert not second.began.is_set()
    assert first().num_missing == 0
    assert set(answers_of(tmp_path / "run")["text"]) == {"first"}


def test_a_driver_whose_run_is_stolen_ends_and_no_answer_is_lost_or_doubled(run, first, tmp_path):
    thief = Waiting("thief")
    thief.go_on.set()
    assert run(thief, SYSTEM_CLOCK, steal=True).num_missing == 0
    ended = first()
    assert isinstance(ended, LeaseError)
    assert "taken over" in str(ended)
    answers = answers_of(tmp_path / "run")
    assert set(answers["text"]) == {"thief"}
    assert answers["video_id"].nunique() == 4
    assert not answers.duplicated(["video_id", "question_id"]).any()


NUM_CLIPS = 6


class Healing(FakeClock):
    """A clock; the stores are well again after so many waits."""

    def __init__(self, sick: Path, waits: int = 10**9):
        super().__init__()
        self.sick, self.waits = sick, waits

    def sleep(self, seconds):
        super().sleep(seconds)
        if len(self.slept_s) == self.waits:
            self.sick.unlink()


def refuse(sick: Path, number: int, parts: list[str], spared: int, path: str) -> None:
    """An error for a path that has all `parts`, while `sick` is there, but not the first ones."""
    if not sick.exists() or not all(part in path for part in parts):
        return
    seen = sick.with_suffix(".seen")
    with seen.open("a") as file:  # workers are processes
        file.write(f"{path}\n")
    if len(set(seen.read_text().split("\n"))) - 1 > spared:
        raise OSError(number, "the store is sick")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


@pytest.fixture(scope="module")
def whole(shapes, tmp_path_factory):
    """What an undisturbed run says."""
    folder = tmp_path_factory.mktemp("whole")
    drive(job(shapes, executor="local", limit=NUM_CLIPS), folder, FakeClock())
    return what_was_said(folder / "run")


def drive(recipe, folder, clock, **hooks):
    locations = Locations(folder, open_storage=opener(**hooks))
    console = Console(file=io.StringIO())
    return execute(recipe, build(recipe), "sweep", locations, folder / "run", console, clock=clock)


@pytest.fixture
def small(shapes):
    return job(shapes, executor="local", limit=NUM_CLIPS)


@pytest.fixture
def sick(tmp_path):
    """While this file is there, the stores are sick."""
    path = tmp_path / "sick"
    path.touch()
    return path


FULL_CACHE = ("before_write", errno.ENOSPC, ["/cache/", ".parquet"])
DEAD_CACHE = ("before_read", errno.ECONNREFUSED, ["/cache/", ".parquet"])


@pytest.mark.parametrize(("hook", "number", "parts"), [FULL_CACHE, DEAD_CACHE])
def test_a_store_that_stays_away_stops_the_job_which_can_be_resumed(
    small, whole, sick, tmp_path, hook, number, parts
):
    hooks = {hook: partial(refuse, sick, number, parts, 2)}
    clock = Healing(sick)
    with pytest.raises(StoreError, match=f"{tmp_path}/cache.*the store is sick.*did not come back"):
        drive(small, tmp_path, clock, **hooks)
    assert clock.slept_s == list(PAUSES_S)
    run = tmp_path / "run"
    assert not (run / "failures.parquet").exists()
    assert answers_of(run)["video_id"].nunique() == 2
    assert set(answers_of(run)["status"]) <= {"ok"}
    sick.unlink()
    result = drive(small, tmp_path, FakeClock(), **hooks)
    assert (result.num_failed_clips, result.num_missing) == (0, 0)
    assert what_was_said(run).equals(whole)


@pytest.mark.parametrize(
    ("hook", "number", "parts"), [FULL_CACHE, ("before_write", errno.EDQUOT, ["/answers/"])]
)
def test_a_store_that_comes_back_is_waited_for(small, whole, sick, tmp_path, hook, number, parts):
    clock = Healing(sick, waits=2)
    result = drive(small, tmp_path, clock, **{hook: partial(refuse, sick, number, parts, 0)})
    assert clock.slept_s == list(PAUSES_S[:2])
    assert (result.num_clips, result.num_failed_clips, result.num_missing) == (NUM_CLIPS, 0, 0)
    assert what_was_said(tmp_path / "run").equals(whole)


def test_a_clip_that_always_meets_it_fails_alone(small, sick, tmp_path):
    """Its token set is larger than a file may be."""
    first = []

    def refuse_one(path):
        if "/cache/" in path and path.endswith(".parquet"):
            first.append(path)
            if path == first[0]:
                raise OSError(errno.EFBIG, "File too large")

    result = drive(small, tmp_path, FakeClock(), before_write=refuse_one)
    assert (result.num_clips, result.num_failed_clips) == (NUM_CLIPS, 1)
    failures = pq.read_table(tmp_path / "run" / "failures.parquet").to_pylist()
    assert {row["status"] for row in failures} == {"encode_failed"}
    assert all("File too large" in row["error"] for row in failures)
