"""`tango runs`: which runs there are, one of them, several side by side, and none any more."""

from __future__ import annotations

import csv
import json
import os
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from fake_answers import cell, facts_of, fake_answers, write_run
from jobs_for_tests import job
from rich.console import Console
from summaries import write_summary

from jobs.run.run_dirs import claim
from jobs.runs.found import find_run, find_runs, remove, state_of
from jobs.runs.show import runs_in, runs_table
from pipeline.runtime.clock import SYSTEM_CLOCK
from pipeline.storage import Storage
from pipeline.storage.leases import Lease, LeaseError

FINISHED = "20250301-101500-shapes-llava-onevision-7b-2-methods"
OTHER = "20250302-101500-shapes-llava-onevision-7b-2-methods"
STOPPED = "20250303-101500-shapes-tiny-8f-tango-r0.1"


def finished(folder: Path, seed: int = 0, num_clips: int = 12) -> Path:
    """A run with two cells and its summary."""
    facts = replace(facts_of(cell("full"), cell("tango", 0.1)), run_id=folder.name)
    write_run(folder, fake_answers(facts, num_clips=num_clips, seed=seed), facts)
    write_summary(folder)
    return folder


@pytest.fixture
def root(tmp_path):
    """Two finished runs, one that was stopped, a cache and a file of somebody."""
    runs = tmp_path / "runs"
    finished(runs / FINISHED)
    finished(runs / OTHER, num_clips=10)
    stopped = runs / STOPPED
    stopped.mkdir()
    claim(stopped, job(tmp_path, limit=3), recipe="recipes/mine.yaml")
    (runs / "cache" / "tiny-8f-full-000000000000").mkdir(parents=True)
    (runs / "notes.txt").write_text("not a run")
    return runs


def test_only_runs_are_found_and_the_newest_is_last(root):
    states = runs_in([str(root)])
    assert [one.run.name for one in states] == [FINISHED, OTHER, STOPPED]
    assert [one.state for one in states] == ["finished", "finished", "stopped"]
    assert [one.num_cells for one in states] == [2, 2, 1]
    assert [one.model for one in states] == ["llava-onevision-7b"] * 2 + ["tiny"]
    assert states[2].recipe == "recipes/mine.yaml"
    assert len(states[0].scores) == 2
    assert not states[2].scores


def test_the_table_fits_eighty_columns_and_names_every_run(root, tango):
    states = runs_in([str(root)])
    wide, narrow = runs_table(states), runs_table(states, 80)
    assert FINISHED in wide
    assert max(map(len, narrow.splitlines())) <= 80
    for one in states:
        assert one.run.name[:15] in narrow
        assert find_run(one.run.name[:15], str(root)).name == one.run.name
    code, out, _ = tango("runs", "ls", root)
    assert (code, out.strip()) == (0, wide.strip())
    code, out, _ = tango("runs", "ls", root, "--json")
    assert [one["state"] for one in json.loads(out)] == ["finished", "finished", "stopped"]


def test_a_run_with_a_living_driver_is_running_and_stays(root):
    storage = Storage.at(root / STOPPED)
    lease = Lease(storage)
    lease.take()
    run = find_run(STOPPED, str(root))
    assert state_of(run).state == "running"
    with pytest.raises(LeaseError, match=r"works on this run.*nothing was removed"):
        remove([STOPPED, FINISHED], str(root), Console(quiet=True), yes=True)
    assert (root / FINISHED / "facts.json").is_file()
    lease.release()
    assert state_of(find_run(STOPPED, str(root))).state == "stopped"


class Later:
    """A clock that is ahead."""

    def __init__(self, seconds: float) -> None:
        self._ahead = timedelta(seconds=seconds)

    def __getattr__(self, name: str):
        return getattr(SYSTEM_CLOCK, name)

    def now(self):
        return SYSTEM_CLOCK.now() + self._ahead


def test_a_lease_that_has_expired_keeps_nothing(root):
    Lease(Storage.at(root / STOPPED)).take()
    name = next(one for one in os.listdir(root / STOPPED) if one.startswith(".lease"))
    path = root / STOPPED / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": "another"}))
    assert state_of(find_run(STOPPED, str(root))).state == "running"
    assert state_of(find_run(STOPPED, str(root)), Later(3600)).state == "stopped"
    assert remove([STOPPED], str(root), Console(quiet=True), yes=True, clock=Later(3600)) == 0
    assert not (root / STOPPED).exists()


def test_rm_removes_a_run_and_follows_no_link(root, tmp_path, tango):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data.txt").write_text("keep me")
    (root / FINISHED / "link").symlink_to(precious)
    (root / FINISHED / "plots").mkdir()
    (root / FINISHED / "plots" / "deep").symlink_to(precious)
    (root / FINISHED / "file").symlink_to(precious / "data.txt")
    code, out, err = tango("runs", "rm", FINISHED, "--root", root, "--yes")
    assert code == 0, err
    assert "removed" in out
    assert not (root / FINISHED).exists()
    assert (precious / "data.txt").read_text() == "keep me"
    assert (root / OTHER).is_dir()
    assert (root / "notes.txt").is_file()


def test_rm_asks_and_takes_nothing_that_is_no_run(root, tango):
    (root / "shortcut").symlink_to(root / FINISHED)
    for arguments, said in (
        ([FINISHED], "there is no terminal to ask on; add --yes"),
        (["cache", "--yes"], "no run in"),
        (["2025", "--yes"], "3 runs of"),
        ([str(root), "--yes"], "is not a run"),
        ([str(root / "notes.txt"), "--yes"], "is not a run: it holds none of job.yaml"),
        (["shortcut", "--yes"], "is a link to"),
        ([FINISHED, "missing", "--yes"], "missing: no run in"),
    ):
        code, _, err = tango("runs", "rm", *arguments, "--root", root)
        assert code == 2, arguments
        assert said in err
        assert err.count("\n") == 1
    assert [one.name for one in find_runs(str(root))] == [FINISHED, OTHER, STOPPED, "shortcut"]


def test_rm_leaves_a_directory_that_is_more_than_a_run(root, tango, monkeypatch):
    """A report into the working directory makes it a run, and everything in it would go."""
    for name in ("facts.json", "summary.json"):
        shutil.copy(root / FINISHED / name, root / name)
    monkeypatch.chdir(root / FINISHED)
    for run, said in (
        (".", ". is the working directory or above it, nothing was removed"),
        (root, "is the working directory or above it"),
    ):
        code, _, err = tango("runs", "rm", run, "--yes")
        assert (code, said in err) == (2, True), err
    monkeypatch.chdir(root.parent)
    code, _, err = tango("runs", "rm", root, "--yes")
    assert code == 2
    assert f"holds other runs ({FINISHED}, {OTHER}, {STOPPED}), nothing was removed" in err
    assert len(runs_in([str(root / FINISHED)])) == 1


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_show_says_that_a_run_is_damaged(root, tango, content):
    (root / OTHER / "facts.json").write_text(content)
    code, out, _ = tango("runs", "show", OTHER, "--root", root)
    assert code == 0
    assert "state:      damaged" in out
    assert [one.state for one in runs_in([str(root)])] == ["finished", "damaged", "stopped"]
    code, out, _ = tango("runs", "show", OTHER, "--root", root, "--json")
    assert (code, json.loads(out)["facts"]) == (0, None)


def test_show_says_what_a_run_is_and_how_to_go_on(root, tango):
    code, out, _ = tango("runs", "show", FINISHED[:12], "--root", root)
    assert code == 0
    assert "finished" in out
    assert "tango r=0.1" in out
    code, out, _ = tango("runs", "show", root / STOPPED)
    assert code == 0
    assert "mine.yaml" in out
    assert f"--resume {root / STOPPED}" in out
    code, out, _ = tango("runs", "show", FINISHED, "--root", root, "--json")
    assert json.loads(out)["summary"]["run_id"] == FINISHED


def test_compare_prints_what_report_would_write_and_writes_nothing(root, tango):
    before = sorted(root.rglob("*"))
    code, out, err = tango("runs", "compare", FINISHED, OTHER, "--root", root)
    assert code == 0, err
    assert FINISHED in out
    assert "Compared on the 30 questions" in out
    assert sorted(root.rglob("*")) == before
    code, _, err = tango("runs", "compare", FINISHED, STOPPED, "--root", root)
    assert code == 2
    assert "is not a finished run" in err


@pytest.mark.parametrize(
    ("form", "separator"), [("markdown", " | "), ("latex", " & "), ("csv", ",")]
)
def test_compare_prints_a_table_to_paste(root, tango, form, separator):
    code, out, err = tango("runs", "compare", FINISHED, OTHER, "--root", root, "--format", form)
    assert code == 0, err
    rows = [line for line in out.splitlines() if separator in line]
    assert len({line.count(separator) for line in rows}) == 1
    header, *cells = [line for line in rows if "---" not in line]
    assert "accuracy" in header
    assert len(cells) == 4
    # The time at its beginning names a run, where it is the only one of that time.
    assert sum(FINISHED in line for line in cells) == (2 if form == "csv" else 0)
    assert sum(FINISHED[:15] in line for line in cells) == 2
    assert ("Compared on the 30 questions" in out) == (form != "csv")


def test_replicates_write_a_table_with_the_mean_of_the_runs(root, tango, tmp_path):
    code, out, err = tango(
        "runs", "replicates", FINISHED, OTHER, "--root", root, "--output", tmp_path / "out"
    )
    assert code == 0, err
    assert "is first on average" in out
    rows = list(csv.DictReader((tmp_path / "out" / "replicates.csv").open()))
    for row in rows:
        values = []
        for name in (FINISHED, OTHER):
            summary = json.loads((root / name / "summary.json").read_text())
            (own,) = (one for one in summary["cells"] if one["cell"] == row["cell"])
            values.append(own["accuracy"])
        assert [float(row[FINISHED]), float(row[OTHER])] == pytest.approx(values)
        assert float(row["mean"]) == pytest.approx(sum(values) / 2)
    assert (tmp_path / "out" / "replicates.svg").read_text().startswith("<svg")
    page = (tmp_path / "out" / "replicates.md").read_text()
    assert "![Accuracy by run and method](replicates.svg)" in page
    assert page.count("| shapes |") == len(rows) == 2
    assert "not asked the same questions" in page  # 12 and 10 clips


def test_replicates_that_began_in_one_second_have_their_folder_in_their_names(
    root, tango, tmp_path
):
    other = tmp_path / "another" / FINISHED
    shutil.copytree(root / FINISHED, other)
    where = ("--root", root, "--output", tmp_path / "out")
    code, _, err = tango("runs", "replicates", FINISHED, other, *where)
    assert code == 0, err
    header = (tmp_path / "out" / "replicates.csv").read_text().splitlines()[0].split(",")
    assert len(set(header)) == len(header)
    assert {f"{root.name}/{FINISHED}", f"another/{FINISHED}"} <= set(header)


@pytest.mark.parametrize(
    ("runs", "said"),
    [([FINISHED], "two runs or more, got 1"), ([FINISHED, FINISHED], "a run is named twice")],
)
def test_one_run_is_no_replicate(root, tango, tmp_path, runs, said):
    where = ("--root", root, "--output", tmp_path / "out")
    code, _, err = tango("runs", "replicates", *runs, *where)
    assert code == 2
    assert said in err
    assert not (tmp_path / "out" / "replicates.csv").exists()


def test_runs_of_a_store_are_listed_shown_and_removed(root, tango):
    import fsspec

    store = fsspec.filesystem("memory")
    store.put(str(root / FINISHED), f"/bucket/runs/{FINISHED}", recursive=True)
    try:
        code, out, err = tango("runs", "ls", "memory://bucket/runs")
        assert code == 0, err
        assert FINISHED in out
        assert "finished" in out
        assert tango("runs", "show", f"memory://bucket/runs/{FINISHED}")[0] == 0
        code, _, err = tango("runs", "rm", f"memory://bucket/runs/{FINISHED}", "--yes")
        assert code == 0, err
        assert not store.find("/bucket/runs")
    finally:
        if store.exists("/bucket"):
            store.rm("/bucket", recursive=True)
