"""What is wrong with the code of a benchmark of one's own is one line, or a failed question."""

from __future__ import annotations

import json
import sys

import pytest
import yaml
from numbered_videos import write_clip
from summaries import read_answers

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
        yield VideoItem("other", missing_name)  # the line that is named


class Making(Good):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.first = {}["first"]  # the line that is named


class Pairs(Good):
    def items(self, limit=None):
        yield "clip", "clip.mp4"


class Absent(Good):
    def items(self, limit=None):
        yield from open(self.root / "absent.csv")  # the line that is named


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
        content = {
            "benchmark": {"name": f"faulty:{name}", "root": str(tmp_path)},
            "model": {"name": "tiny", "num_frames": 2},
            "method": {"name": "full"},
            "executor": "local",
        }
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
        return tango("evaluate", "recipe.yaml", "--quiet", "--tracking-uri", "http://127.0.0.1:9")

    yield call
    sys.modules.pop("faulty", None)


def line_in(name):
    """Number of the line of a class that is named."""
    lines = MODULE.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"class {name}("))
    return next(n for n in range(start, len(lines)) if "is named" in lines[n]) + 1


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("Listing", "NameError: name 'missing_name' is not defined"),
        ("Making", "KeyError: 'first'"),
        ("Absent", "FileNotFoundError: [Errno 2] No such file or directory: "),
    ],
)
def test_an_exception_in_its_code_is_one_line_that_says_where(evaluate, name, what):
    code, _, err = evaluate(name)
    assert code == 2
    (line,) = err.splitlines()
    where = f"benchmark.name 'faulty:{name}' failed (faulty.py, line {line_in(name)})"
    assert f"{where}: {what}" in line


def test_what_it_lists_wrongly_is_one_line(evaluate):
    code, _, err = evaluate("Pairs")
    assert code == 2
    (line,) = err.splitlines()
    assert "benchmark.name 'faulty:Pairs' failed: AttributeError: 'tuple' object" in line


def test_data_check_says_it_in_the_same_line(evaluate, tango, tmp_path):
    evaluate("Good")
    code, _, err = tango("data", "check", "faulty:Listing", tmp_path)
    assert code == 2
    assert (
        f"tango: benchmark.name 'faulty:Listing' failed (faulty.py, line {line_in('Listing')})"
        in err
    )


def test_a_score_that_raises_fails_its_question(evaluate, tmp_path):
    code, _, _ = evaluate("Scoring")
    assert code == 1
    (run,) = [path.parent for path in tmp_path.glob("runs/*/summary.json")]
    (answer,) = read_answers(run).to_dict("records")
    assert (answer["status"], answer["error"]) == ("answer_failed", "RuntimeError: no score")
    assert json.loads((run / "summary.json").read_text())["num_failed"] == 1
