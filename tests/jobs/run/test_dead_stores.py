"""A disk that gets full and a store that goes away, under real stages: no clip fails for it."""

from __future__ import annotations

import errno
import io
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_clock import FakeClock
from faulty_storage import opener
from jobs_for_tests import answers_of, job, what_was_said
from rich.console import Console

from jobs.run.build import build
from jobs.run.driver import execute
from jobs.run.locations import Locations
from pipeline.errors import StoreError
from pipeline.storage.objects import PAUSES_S

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
def recipe(shapes):
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
    recipe, whole, sick, tmp_path, hook, number, parts
):
    hooks = {hook: partial(refuse, sick, number, parts, 2)}
    clock = Healing(sick)
    with pytest.raises(StoreError, match=f"{tmp_path}/cache.*the store is sick.*did not come back"):
        drive(recipe, tmp_path, clock, **hooks)
    assert clock.slept_s == list(PAUSES_S)
    run = tmp_path / "run"
    assert not (run / "failures.parquet").exists()
    assert answers_of(run)["video_id"].nunique() == 2
    assert set(answers_of(run)["status"]) <= {"ok"}
    sick.unlink()
    result = drive(recipe, tmp_path, FakeClock(), **hooks)
    assert (result.num_failed_clips, result.num_missing) == (0, 0)
    assert what_was_said(run).equals(whole)


@pytest.mark.parametrize(
    ("hook", "number", "parts"), [FULL_CACHE, ("before_write", errno.EDQUOT, ["/answers/"])]
)
def test_a_store_that_comes_back_is_waited_for(recipe, whole, sick, tmp_path, hook, number, parts):
    clock = Healing(sick, waits=2)
    result = drive(recipe, tmp_path, clock, **{hook: partial(refuse, sick, number, parts, 0)})
    assert clock.slept_s == list(PAUSES_S[:2])
    assert (result.num_clips, result.num_failed_clips, result.num_missing) == (NUM_CLIPS, 0, 0)
    assert what_was_said(tmp_path / "run").equals(whole)


def test_a_clip_that_always_meets_it_fails_alone(shapes, sick, tmp_path):
    """Its token set is larger than a file may be."""
    recipe = job(shapes, executor="local", limit=NUM_CLIPS)
    first = []

    def refuse_one(path):
        if "/cache/" in path and path.endswith(".parquet"):
            first.append(path)
            if path == first[0]:
                raise OSError(errno.EFBIG, "File too large")

    result = drive(recipe, tmp_path, FakeClock(), before_write=refuse_one)
    assert (result.num_clips, result.num_failed_clips) == (NUM_CLIPS, 1)
    failures = pq.read_table(tmp_path / "run" / "failures.parquet").to_pylist()
    assert {row["status"] for row in failures} == {"encode_failed"}
    assert all("File too large" in row["error"] for row in failures)
