"""`tango ask`, `tango list` and `tango analyze` as a person at a terminal meets them."""

from __future__ import annotations

import json

import pytest
from jobs_for_tests import write_recipe
from numbered_videos import write_clip

from jobs.config.overrides import RECIPES
from tango_core.benchmarks import BENCHMARKS
from tango_core.compressors import METHODS
from tango_core.models import MODELS, describe_model


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return str(write_clip(tmp_path_factory.mktemp("videos") / "clip.mp4", 48))


@pytest.fixture
def recipe(tmp_path, video):
    """A recipe that looks at two copies of a video."""
    rows = [{"video": video, "question": "What moves?"}, {"video": video, "start": 0.5, "end": 1.5}]
    table = tmp_path / "questions.jsonl"
    table.write_text("\n".join(json.dumps({"question": "Why?", **row}) for row in rows))
    benchmark = {"name": "custom", "root": str(table)}
    return write_recipe(tmp_path, benchmark=benchmark, model={"name": "tiny", "num_frames": 3}).name


@pytest.mark.parametrize(
    ("method", "kept"),
    [("full", "192 of"), ("block", "48 of"), ("tango", "of 192 visual tokens (1")],
)
def test_ask_prints_the_reply_the_tokens_and_the_times(tango, video, method, kept):
    """Methods without a retention are asked without one."""
    arguments = ("--method", method, "--num-frames", "3", "--max-new-tokens", "3")
    code, out, err = tango("ask", video, "What moves?", *arguments)
    assert (code, err) == (0, "")
    reply, cost, *_ = out.splitlines()
    assert reply.strip()
    assert kept in cost
    for stage in ("read", "vision", "compress", "first token", "rest"):
        assert stage in cost


def test_an_option_is_chosen_by_its_letter(tango, video):
    code, out, _ = tango("ask", video, "Which color?", "--num-frames", "3", "--choices", "red|blue")
    assert (code == 0) == (out.splitlines()[0] in ("A. red", "B. blue"))


@pytest.mark.parametrize("score", ["saliency", "attention"])
def test_sinks_are_found_and_a_recipe_can_name_them(tango, recipe, tmp_path, score):
    # With these shares every position is a sink, whatever the weights look at.
    everything = ["--max-mean-rank", "1", "--max-spread", "1"]
    code, out, _ = tango(
        "analyze", "sinks", recipe, "--score", score, "--output", "found/sinks.json", *everything
    )
    assert code == 0
    assert f"6 frames of 2 clips, 8 x 8 positions ranked by {score}" in out
    assert "2 clip(s) are few" in out
    content = json.loads((tmp_path / "found/sinks.json").read_text())
    assert sorted(content["sinks"]) == list(range(64))
    assert content["model"]["digest"] == describe_model("tiny").digest
    ranks = content["statistics"]["rank_mean"]
    assert sum(ranks) == pytest.approx(64 * 65 / 2, abs=0.1)
    # A recipe takes the file, and keeps the tokens it leads to apart.
    named = ["--set", "model.sinks=found/sinks.json"]
    away = ("--tracking-uri", "http://127.0.0.1:9")  # MLflow is not what is tested here
    for options in ((), named):
        assert tango("precompute", recipe, *away, *options)[0] == 0
    caches = list((tmp_path / "runs" / "cache").iterdir())
    assert len(caches) == 2


@pytest.mark.parametrize(
    ("kind", "known", "words"),
    [
        ("methods", METHODS, {"visionzip": "arXiv 2412.04467", "cdpruner": "the question"}),
        ("models", MODELS, {"tiny": "nothing", "qwen2.5-vl-7b": "Qwen/Qwen2.5-VL-7B-Instruct"}),
        ("benchmarks", BENCHMARKS, {"mlvu": "on accepted terms", "shapes": "generated"}),
        ("recipes", list(RECIPES.glob("*.yaml")), {"shapes_tiny": "tiny, shapes"}),
    ],
    ids=["methods", "models", "benchmarks", "recipes"],
)
def test_everything_that_there_is_has_a_line(tango, kind, known, words):
    code, out, err = tango("list", kind)
    assert (code, err) == (0, "")
    lines = out.splitlines()[2:]
    assert len(lines) == len(known)
    for name, word in words.items():
        (line,) = (line for line in lines if line.split()[0] == name)
        assert word in line
    listed = json.loads(tango("list", kind, "--json")[1])
    assert all(entry[key] for entry in listed for key in ("name", "what", "source", "needs"))
