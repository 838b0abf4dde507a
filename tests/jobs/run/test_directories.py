"""Run directories of new and continued runs; sweeps of several jobs."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pytest
import yaml
from fake_clock import FakeClock
from jobs_for_tests import job
from rich.console import Console

from jobs.config.recipe import RecipeError, parse_job
from jobs.run.commands import run_jobs
from jobs.run.driver import FAILURE
from jobs.run.locations import Locations
from jobs.run.progress import Display
from jobs.run.run_dirs import (
    claim,
    find_run,
    finished_of_round,
    new_run_dir,
    unfinished_run,
)
from pipeline.storage import Storage
from pipeline.storage.leases import EXPIRES_S, Lease, held
from pipeline.storage.seal import write_sealed


@pytest.fixture
def recipe(tmp_path):
    return job(tmp_path / "shapes")


POOLED = {"model": {"name": "tiny", "num_frames": 8, "pooling_step": 4}}
THREE = {"methods": [{"name": "uniform", "retention": [0.1, 0.2, 0.3]}]}
ONE = {"methods": [{"name": "uniform", "retention": 0.1}]}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "shapes-tiny-full"),
        (POOLED, "shapes-tiny-8f-pooling_step4-full"),
        (THREE, "shapes-tiny-3-methods"),
        (ONE, "shapes-tiny-uniform-r0.1"),
    ],
)
def test_a_directory_is_named_by_time_and_content(tmp_path, changes, name):
    clock = FakeClock()
    stamp = f"{clock.now().astimezone():%Y%m%d-%H%M%S}"
    recipe = job(tmp_path / "shapes", **changes)
    first, second = (new_run_dir(recipe, tmp_path, clock=clock) for _ in range(2))
    assert (first, second) == (tmp_path / f"{stamp}-{name}", tmp_path / f"{stamp}-{name}-2")
    assert first.is_dir()


def test_a_run_is_found_by_path_and_by_name(recipe, tmp_path):
    run_dir = new_run_dir(recipe, tmp_path)
    with pytest.raises(RecipeError, match="no run directory with a job"):
        find_run(run_dir.name, tmp_path)
    claim(run_dir, recipe)
    assert find_run(run_dir.name, tmp_path) == run_dir
    assert find_run(str(run_dir), tmp_path / "elsewhere") == run_dir


def test_a_run_goes_on_with_other_workers_but_not_with_other_methods(tmp_path):
    first = job(tmp_path, executor="ray")
    claim(tmp_path, first)
    claim(tmp_path, job(tmp_path, executor="local", max_failures=3))
    assert "executor: local" in (tmp_path / "job.yaml").read_text()
    with pytest.raises(RecipeError, match="the recipe's limit differs from that run; resume it"):
        claim(tmp_path, job(tmp_path, limit=7))


@pytest.fixture
def started(tmp_path):
    """`started(**changes)` leaves a run that has begun, each a second after the last one."""
    clock = FakeClock()

    def start(finished=False, answers=True, failed=(), **changes):
        clock.sleep(1)
        recipe = job(tmp_path / "shapes", **changes)
        run_dir = new_run_dir(recipe, tmp_path / "runs", clock=clock)
        claim(run_dir, recipe, answers=answers)
        for name in ("facts.json", "summary.json") if finished else ():
            (run_dir / name).write_text("{}")
        rows = [dict.fromkeys(FAILURE.names, clip) for clip in failed]
        table = pa.Table.from_pylist(rows, FAILURE)
        write_sealed(table, Storage.at(run_dir), "failures.parquet", run_dir.name)
        return run_dir

    return start


def found(tmp_path, **changes):
    return unfinished_run(job(tmp_path / "shapes", **changes), tmp_path / "runs")


def test_the_newest_unfinished_run_of_the_same_job_goes_on(started, tmp_path):
    assert found(tmp_path) is None
    started()
    newest = started()
    started(limit=7)
    started(finished=True)
    assert found(tmp_path) == newest
    assert found(tmp_path, executor="local", max_failures=3) == newest


def test_a_run_without_a_summary_is_unfinished(started, tmp_path):
    run_dir = started(finished=True)
    assert found(tmp_path) is None
    (run_dir / "summary.json").unlink()
    assert found(tmp_path) == run_dir


def test_a_run_is_unfinished_while_more_clips_failed_than_allowed(started, tmp_path):
    run_dir = started(finished=True, failed=["a.mp4", "a.mp4", "b.mp4"])
    assert found(tmp_path, max_failures=2) is None
    assert found(tmp_path, max_failures=1) == run_dir
    (run_dir / "failures.parquet").write_bytes(b"PAR1")
    assert found(tmp_path, max_failures=2) == run_dir


class TestSeveralJobs:
    CHANGES = tuple({"limit": number} for number in (1, 2, 3))

    def finished(self, tmp_path):
        jobs = [job(tmp_path / "shapes", **changes) for changes in self.CHANGES]
        return finished_of_round(jobs, tmp_path / "runs")

    def test_after_a_whole_sweep_the_next_one_starts_from_nothing(self, started, tmp_path):
        assert self.finished(tmp_path) == {}
        for changes in self.CHANGES:
            started(finished=True, **changes)
        assert self.finished(tmp_path) == {}
        again = started(finished=True, **self.CHANGES[0])
        assert self.finished(tmp_path) == {0: again}, "the others are of the sweep before"
        second = started(finished=True, failed=["a.mp4"], **self.CHANGES[1])
        third = started(finished=True, **self.CHANGES[2])
        assert self.finished(tmp_path) == {0: again, 2: third}
        assert unfinished_run(job(tmp_path / "shapes", limit=2), tmp_path / "runs") == second


def test_a_run_that_fills_the_cache_only_is_not_continued(started, tmp_path):
    started(answers=False)
    assert found(tmp_path) is None


def test_the_lease_of_a_dead_driver_is_waited_for(tmp_path):
    clock, storage = FakeClock(), Storage.at(tmp_path)
    Lease(storage, clock).take()  # this process lives, so that only time frees the run
    with held(Lease(storage, clock), waits=True, clock=clock):
        pass
    assert EXPIRES_S <= clock.passed_s <= EXPIRES_S + 5


RECIPE = {
    "benchmark": {"name": "shapes"},
    "method": {"name": "full"},
    "model": {"name": "llava-video-7b", "pooling": "bilinear"},
}


def test_an_option_that_an_older_run_does_not_know_is_not_set(tmp_path):
    job = parse_job(RECIPE, "recipe")
    older = yaml.safe_load(job.to_yaml())
    assert older["model"].pop("position_rule") is None
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(older))
    claim(tmp_path, job)
    assert (tmp_path / "job.yaml").read_text() == job.to_yaml()


NO_SERVER = "http://127.0.0.1:9"  # nobody listens there; MLflow is not loaded


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


def test_an_interrupted_sweep_repeats_no_finished_run(shapes, tmp_path):
    several = [
        job(shapes, executor="local", limit=1, model={"name": "tiny", "num_frames": count})
        for count in (2, 4, 8)
    ]

    said = io.StringIO()

    def swept():
        where = Locations(tmp_path, tracking_uri=NO_SERVER, continues=True)
        assert run_jobs(several, where, Display(Console(file=said, width=200))) == 0
        return sorted(path.name for path in tmp_path.glob("*-shapes-tiny-*f-*"))

    first = swept()
    assert len(first) == 3
    (folder,) = tmp_path.glob("*-comparison")
    summary = json.loads((folder / "summary.json").read_text())
    assert [cell["num_frames"] for cell in summary["cells"]] == [2, 4, 8]
    for text in (said.getvalue(), (folder / "paper_table.md").read_text()):
        assert "| tiny, 4 frames | full | 100 |" in text
    (tmp_path / first[1] / "summary.json").unlink()
    finished = (tmp_path / first[0] / "summary.json").stat()
    assert swept() == first
    assert (tmp_path / first[0] / "summary.json").stat() == finished
    assert (tmp_path / first[1] / "summary.json").exists()
    assert len(list(tmp_path.glob("*-comparison*"))) == 2
    assert len(swept()) == 6, "all were finished, so all are measured again"
