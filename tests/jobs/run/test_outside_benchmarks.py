"""Benchmarks of one's own, named `module:Class` in a recipe, through every command."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest
from jobs_for_tests import RECIPE, write_recipe
from jobs_for_tests import run as run_job
from numbered_videos import write_clip
from outside_benchmarks import WHOLE_ROWS, write_modules
from releases import write_json
from summaries import read_answers, write_summary

from jobs.config.recipe import parse_job

SMALL, WHOLE = "small_bench:Small", "whole_bench:Whole"


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    """The modules in a directory on the path; what they load is forgotten again."""
    folder = tmp_path_factory.mktemp("outside")
    write_modules(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        yield folder
    for name in ("small_bench", "whole_bench"):
        sys.modules.pop(name, None)


def recipe_of(name, root):
    benchmark = {"name": name, "root": str(root)}
    return {**RECIPE, "benchmark": benchmark, "model": {"name": "tiny", "num_frames": 2}}


def test_a_benchmark_that_states_nothing_is_measured_reported_and_checked(tango, tmp_path):
    write_clip(tmp_path / "clip.mp4", 8)
    code, _, err = tango("data", "check", SMALL, tmp_path)
    assert code == 0, err
    write_recipe(tmp_path, **recipe_of(SMALL, tmp_path))
    code, out, err = tango("evaluate", "recipe.yaml")
    assert code == 0, err
    assert f"on {SMALL}" in out
    (run,) = [path for path in (tmp_path / "runs").iterdir() if (path / "job.yaml").exists()]
    assert ":" not in run.name
    assert "small_bench-Small-tiny" in run.name
    answers = read_answers(run)
    assert set(answers["benchmark"]) == {SMALL}
    assert len(answers) == 2
    (cell,) = json.loads((run / "summary.json").read_text())["cells"]
    assert (cell["benchmark"], cell["protocol"]) == (SMALL, "plain")
    assert (cell["accuracy_macro"], cell["accuracy_cross"]) == (None, {})
    assert set(cell["accuracy_by"]["kind"]) == {"color", "count"}
    assert SMALL in (run / "report.html").read_text()
    assert tango("report", run)[0] == 0
    code, _, err = tango("export", run, "--format", "vlmevalkit")
    assert (code, f"{SMALL} is not in VLMEvalKit" in err) == (2, True)


class TestEverythingStated:
    @pytest.fixture(scope="class")
    def run(self, folder):
        """A finished run; its benchmark lies in the same folder as the module."""
        write_json(folder / "whole.json", WHOLE_ROWS)
        (folder / "videos").mkdir()
        for number in range(2):
            write_clip(folder / "videos" / f"{number}.mp4", 8)
        job = parse_job(recipe_of(WHOLE, folder), "test")
        _, run_dir = run_job(job, folder / "runs", kind="evaluate")
        write_summary(run_dir)
        return run_dir

    def test_tables_and_averages_are_its_own(self, tango, run, tmp_path):
        cell = json.loads((run / "summary.json").read_text())["cells"][0]
        by_kind = cell["accuracy_by"]["kind"]
        mean = (by_kind["color"]["accuracy"] + by_kind["count"]["accuracy"]) / 2
        assert cell["accuracy_macro"] == pytest.approx(mean)
        assert set(cell["accuracy_cross"]["length"]) == {"short", "long"}
        code, _, err = tango("report", run, "--output", "compared")
        assert code == 0, err
        header = (tmp_path / "compared" / "paper_table.md").read_text().splitlines()[0]
        assert [part.strip() for part in header.split("|")][4:-1] == [
            "The Whole color", "The Whole count", "The Whole overall", "Avg.", "Perf. %",
        ]  # fmt: skip
        page = (tmp_path / "compared" / "report.html").read_text()
        assert "mean over kind %" in page
        assert "M-Avg" not in page + (tmp_path / "compared" / "breakdowns.md").read_text()

    @pytest.mark.parametrize("harness", ["vlmevalkit", "lmms_eval"])
    def test_answers_travel_to_a_harness_and_back(self, tango, folder, run, tmp_path, harness):
        code, out, err = tango("export", run, "--format", harness, "--output", "out")
        assert code == 0, err
        (file,) = out.splitlines()
        assert ("Whole_MCQ.tsv" if harness == "vlmevalkit" else "samples_whole_test") in file
        options = ["--format", harness, "--benchmark", WHOLE, "--root", folder]
        code, out, err = tango("import", file, *options)
        assert code == 0, err
        back = read_answers(tmp_path / out.strip().splitlines()[-1].removeprefix("run: "))
        sent = read_answers(run).set_index("question_id").sort_index()
        compared = ["benchmark", "video_id", "text", "choice", "correct", "harness_score"]
        back = back.set_index("question_id").sort_index()
        pd.testing.assert_frame_equal(back[compared], sent[compared], check_dtype=False)


MODULE = """
from typing import ClassVar

from tango_core.benchmarks import Benchmark, Protocol
from tango_core.benchmarks.protocols.protocol import render_prompt
from tango_core.benchmarks.protocols.protocol import read_choice
from tango_core.types import Question, VideoItem


class Good(Benchmark):
    def items(self, limit=None):
        question = Question("q1", "Which color?", ("red", "blue"), 1)
        yield VideoItem("clip", str(self.root / "clip.mp4"), None, (question,))


class Listing(Good):
    def items(self, limit=None):
        yield from super().items()
        yield VideoItem("other", missing_name)


class Absent(Good):
    def items(self, limit=None):
        yield from open(self.root / "absent.csv")


def score(reply, question):
    raise RuntimeError("no score")


class Scoring(Good):
    protocols: ClassVar = {
        "vlmevalkit": Protocol("vlmevalkit", render_prompt, read_choice, harness_score=score)
    }
"""


@pytest.fixture
def evaluate(tango, tmp_path, monkeypatch):
    """Runs a command on one class of the module."""
    (tmp_path / "faulty.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    write_clip(tmp_path / "clip.mp4", 8)

    def call(name):
        write_recipe(tmp_path, **recipe_of(f"faulty:{name}", tmp_path))
        return tango("evaluate", "recipe.yaml", "--quiet", "--tracking-uri", "http://127.0.0.1:9")

    yield call
    sys.modules.pop("faulty", None)


@pytest.mark.parametrize(
    ("name", "where", "what"),
    [
        ("Listing", "faulty.py, line 19", "NameError: name 'missing_name' is not defined"),
        ("Absent", "faulty.py, line 24", "FileNotFoundError: [Errno 2] No such file or direct"),
    ],
)
def test_an_exception_in_its_code_is_one_line_that_names_the_place(
    evaluate, tango, tmp_path, name, where, what
):
    code, _, err = evaluate(name)
    assert code == 2
    (line,) = err.splitlines()
    assert f"benchmark.name 'faulty:{name}' failed ({where}): {what}" in line
    code, _, err = tango("data", "check", f"faulty:{name}", tmp_path)
    assert code == 2
    assert f"benchmark.name 'faulty:{name}' failed ({where}): {what}" in err


def test_a_score_that_raises_fails_its_question(evaluate, tmp_path):
    code, _, _ = evaluate("Scoring")
    assert code == 1
    (run,) = [path.parent for path in tmp_path.glob("runs/*/summary.json")]
    (answer,) = read_answers(run).to_dict("records")
    assert (answer["status"], answer["error"]) == ("answer_failed", "RuntimeError: no score")
    assert json.loads((run / "summary.json").read_text())["num_failed"] == 1
