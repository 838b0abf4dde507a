"""`tango runs`: which runs there are, one of them, several side by side, and none any more."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from fake_answers import cell, facts_of, fake_answers, write_run
from jobs_for_tests import job
from rich.console import Console
from summaries import write_summary

from jobs.run.run_dirs import claim
from jobs.runs.found import find_run, find_runs, remove, state_of
from jobs.runs.show import runs_in, runs_table
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


def test_the_list_holds_all_runs_and_fits_eighty_columns(root, tango):
    rows = runs_in([str(root)])
    assert [row["run"] for row in rows] == [FINISHED, OTHER, STOPPED]
    assert [row["state"] for row in rows] == ["finished", "finished", "stopped"]
    assert [row["cells"] for row in rows] == [2, 2, 1]
    assert [row["model"] for row in rows] == ["llava-onevision-7b"] * 2 + ["tiny"]
    assert rows[2]["recipe"] == "recipes/mine.yaml"
    assert [len(row["scores"]) for row in rows] == [2, 2, 0]
    wide, narrow = runs_table(rows), runs_table(rows, 80)
    assert FINISHED in wide
    assert max(map(len, narrow.splitlines())) <= 80
    for row in rows:
        assert row["run"][:15] in narrow
        assert find_run(row["run"][:15], str(root)).name == row["run"]
    code, out, _ = tango("runs", "ls", root)
    assert (code, out.strip()) == (0, wide.strip())
    code, out, _ = tango("runs", "ls", root, "--json")
    assert json.loads(out) == rows


def test_a_run_with_a_living_driver_is_running_and_stays(root):
    lease = Lease(Storage.at(root / STOPPED))
    lease.take()
    assert state_of(find_run(STOPPED, str(root)))["state"] == "running"
    with pytest.raises(LeaseError, match=r"works on this run.*nothing was removed"):
        remove([STOPPED, FINISHED], str(root), Console(quiet=True), yes=True)
    assert (root / FINISHED / "facts.json").is_file()
    lease.release()
    assert state_of(find_run(STOPPED, str(root)))["state"] == "stopped"


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
        (["shortcut", "--yes"], "is a link; name the directory"),
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
    others = f"holds other runs ({FINISHED}, {OTHER}, {STOPPED}), nothing was removed"
    for run, here, words in (
        (".", root / FINISHED, "is the working directory or above it"),
        (root, root / FINISHED, "is the working directory or above it"),
        (root, root.parent, others),
    ):
        monkeypatch.chdir(here)
        code, _, err = tango("runs", "rm", run, "--yes")
        assert (code, words in err) == (2, True), err
    assert len(runs_in([str(root / FINISHED)])) == 1


@pytest.mark.parametrize("content", ["", "[]"])
def test_show_reports_a_damaged_run(root, tango, content):
    (root / OTHER / "facts.json").write_text(content)
    code, out, _ = tango("runs", "show", OTHER, "--root", root)
    assert code == 0
    assert "state:      damaged" in out
    assert [row["state"] for row in runs_in([str(root)])] == ["finished", "damaged", "stopped"]
    code, out, _ = tango("runs", "show", OTHER, "--root", root, "--json")
    assert (code, json.loads(out)["facts"]) == (0, None)


def test_show_prints_settings_results_and_how_to_continue(root, tango):
    for run, words in (
        ([FINISHED[:12], "--root", root], ("finished", "tango r=0.1")),
        ([root / STOPPED], ("mine.yaml", f"--resume {root / STOPPED}")),
    ):
        code, out, _ = tango("runs", "show", *run)
        assert code == 0
        assert all(word in out for word in words)
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


def test_a_lease_that_has_expired_keeps_nothing(root):
    Lease(Storage.at(root / STOPPED)).take()
    (path,) = (root / STOPPED).glob(".lease*")
    held = {**json.loads(path.read_text()), "machine": "another"}
    path.write_text(json.dumps(held))
    assert state_of(find_run(STOPPED, str(root)))["state"] == "running"
    renewed = datetime.fromisoformat(held["renewed_at"]) - timedelta(hours=1)
    path.write_text(json.dumps({**held, "renewed_at": renewed.isoformat()}))
    assert state_of(find_run(STOPPED, str(root)))["state"] == "stopped"
    assert remove([STOPPED], str(root), Console(quiet=True), yes=True) == 0
    assert not (root / STOPPED).exists()
