"""One recipe that makes several runs ends in one table; shards of a job know each other's sizes."""

from __future__ import annotations

import io
import json

import pytest
from jobs_for_tests import job, run
from rich.console import Console

from jobs.run.commands import compare, run_jobs
from jobs.run.locations import Locations
from jobs.run.progress import Display

NO_SERVER = "http://127.0.0.1:9"  # nobody listens there; MLflow is not loaded


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


def test_runs_with_other_frames_are_set_side_by_side(shapes, tmp_path):
    jobs = [
        job(shapes, executor="local", limit=2, model={"name": "tiny", "num_frames": count})
        for count in (2, 4)
    ]
    run_dirs = [run(one, tmp_path)[1] for one in jobs]
    said = io.StringIO()
    compare(jobs, run_dirs, Locations(tmp_path), Display(Console(file=said, width=200)))
    (folder,) = tmp_path.glob("*-shapes-tiny-comparison")
    assert (folder / "report.html").is_file()
    summary = json.loads((folder / "summary.json").read_text())
    assert [cell["num_frames"] for cell in summary["cells"]] == [2, 4]
    assert "2 runs side by side" in said.getvalue()
    for text in (said.getvalue(), (folder / "paper_table.md").read_text()):
        assert "| tiny, 2 frames | full | 100 |" in text
        assert "| tiny, 4 frames | full | 100 |" in text


def test_an_interrupted_sweep_repeats_no_finished_run(shapes, tmp_path):
    several = [
        job(shapes, executor="local", limit=1, model={"name": "tiny", "num_frames": count})
        for count in (2, 4, 8)
    ]

    def swept():
        where = Locations(tmp_path, tracking_uri=NO_SERVER, continues=True)
        assert run_jobs(several, where, Display(Console(file=io.StringIO(), width=200))) == 0
        return sorted(path.name for path in tmp_path.glob("*-shapes-tiny-*f-*"))

    first = swept()
    assert len(first) == 3
    (tmp_path / first[1] / "summary.json").unlink()
    finished = (tmp_path / first[0] / "summary.json").stat()
    assert swept() == first
    assert (tmp_path / first[0] / "summary.json").stat() == finished
    assert (tmp_path / first[1] / "summary.json").exists()
    assert len(list(tmp_path.glob("*-comparison*"))) == 2
    assert len(swept()) == 6, "all were finished, so all are measured again"
