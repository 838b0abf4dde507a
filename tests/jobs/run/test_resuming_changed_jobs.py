"""A run goes on after its questions, videos or model changed: no answer is to the old ones."""

import json
import logging
import shutil
import sys

import pandas as pd
import pytest
from jobs_for_tests import answers_of, job, run
from safetensors.torch import load_file, save_file

import tango_core.tiny
from jobs.config.recipe import RecipeError
from jobs.run.build import build
from jobs.run.run_dirs import find_run
from tango_core.benchmarks import build_benchmark

CLIPS = 3


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Generated videos of `CLIPS` clips."""
    root = tmp_path_factory.mktemp("shapes")
    for item in build_benchmark("shapes", root=str(root)).items(CLIPS + 1):
        assert item.path
    return sorted(root.rglob("*.mp4"))


@pytest.fixture
def table(tmp_path, shapes):
    """A table of two questions about each clip; the last video is missing at first."""
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(CLIPS - 1):
        shutil.copy(shapes[number], videos / f"v{number}.mp4")
    rows = [
        {
            "video": f"videos/v{number}.mp4",
            "id": f"q{number}{part}",
            "question": text,
            "options": ["red", "green", "blue"],
            "answer": "A",
        }
        for number in range(CLIPS)
        for part, text in enumerate(["What color is the cross?", "What color is the ring?"])
    ]
    return Table(tmp_path / "questions.jsonl", rows)


class Table:
    """A table that can be edited."""

    def __init__(self, path, rows):
        self.path, self.rows = path, rows
        self.write()

    def write(self):
        self.path.write_text("\n".join(map(json.dumps, self.rows)))


def recipe(table, **changes):
    benchmark = {"name": "custom", "root": str(table.path)}
    return job(table.path.parent, benchmark=benchmark, limit=None, executor="local", **changes)


def asked_first(table, shapes, **changes):
    """A run in which the clip without a video failed; then its video is there."""
    result, run_dir = run(recipe(table, **changes), table.path.parent / "runs")
    assert result.num_failed_clips == 1
    shutil.copy(shapes[CLIPS - 1], table.path.parent / f"videos/v{CLIPS - 1}.mp4")
    return run_dir


def goes_on(table, run_dir, **changes):
    result, _ = run(
        recipe(table, **changes), run_dir.parent, find_run(run_dir.name, run_dir.parent)
    )
    return result.facts.work, answers_of(run_dir)


def test_what_is_unchanged_is_not_asked_again(table, shapes):
    run_dir = asked_first(table, shapes)
    work, answers = goes_on(table, run_dir)
    assert work.answered == 2
    assert len(answers) == 2 * CLIPS


def test_another_key_or_other_words_under_the_same_id_are_asked_again(table, shapes, caplog):
    run_dir = asked_first(table, shapes)
    table.rows[0]["answer"] = "B"
    table.rows[2]["question"] = "Which digit is shown?"
    table.write()
    with caplog.at_level(logging.WARNING):
        work, answers = goes_on(table, run_dir)
    assert "the answers about 2 clip(s) are dropped" in caplog.text
    assert work.answered == 2 * CLIPS
    assert answers.set_index("question_id")["answer"].to_dict()["q00"] == 1
    assert answers["question_id"].is_unique


def test_a_replaced_video_is_asked_about_again(table, shapes):
    run_dir = asked_first(table, shapes)
    before = answers_of(run_dir).set_index("question_id")["frames_digest"]
    shutil.copy(shapes[CLIPS], table.path.parent / "videos/v0.mp4")
    work, answers = goes_on(table, run_dir)
    after = answers.set_index("question_id")["frames_digest"]
    assert work.answered == 4
    assert after["q00"] != before["q00"]
    assert after["q10"] == before["q10"]


def test_a_video_that_has_gone_since_it_was_answered_keeps_its_answers(table, shapes):
    run_dir = asked_first(table, shapes)
    (table.path.parent / "videos/v0.mp4").unlink()
    work, answers = goes_on(table, run_dir)
    assert work.answered == 2
    assert set(answers["status"]) <= {"ok", "unparsed"}


def test_a_clip_that_the_table_no_longer_lists_leaves_the_run(table, shapes):
    run_dir = asked_first(table, shapes)
    del table.rows[:2]
    table.write()
    _, answers = goes_on(table, run_dir)
    assert sorted(answers["question_id"]) == ["q10", "q11", "q20", "q21"]


def test_a_driver_that_dies_at_once_leaves_no_answer_to_another_question(
    table, shapes, monkeypatch
):
    """What is asked now is noted before it is answered, and must not vouch for older answers."""
    run_dir = asked_first(table, shapes)
    table.rows[0]["answer"] = "B"
    table.write()

    def dies(plan, settings, **_):
        raise KeyboardInterrupt
        yield

    with monkeypatch.context() as patched:
        patched.setattr("jobs.run.driver.run", dies)
        with pytest.raises(KeyboardInterrupt):
            goes_on(table, run_dir)
    _, answers = goes_on(table, run_dir)
    assert answers.set_index("question_id")["answer"].to_dict()["q00"] == 1


def tiny_in(folder):
    """The embedded model in a directory of its own, as a recipe names it."""
    shutil.copytree(tango_core.tiny.__path__[0], folder)
    return {"name": "tiny", "path": str(folder)}


def test_weights_that_were_trained_again_in_their_directory_are_refused(table, shapes, tmp_path):
    model = tiny_in(tmp_path / "model")
    run_dir = asked_first(table, shapes, model=model)
    before = answers_of(run_dir)
    file = tmp_path / "model/model.safetensors"
    save_file({name: value * 1.01 for name, value in load_file(file).items()}, file)
    with pytest.raises(RecipeError, match=r"'full' was answered from the cache tiny-\S+ and would"):
        goes_on(table, run_dir, model=model)
    pd.testing.assert_frame_equal(answers_of(run_dir), before)


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
def test_another_tokenizer_or_end_of_replies_is_refused(table, shapes, tmp_path, name):
    model = tiny_in(tmp_path / "model")
    run_dir = asked_first(table, shapes, model=model)
    file = tmp_path / "model" / name
    file.write_text(json.dumps(json.loads(file.read_text()) | {"edited": True}))
    with pytest.raises(RecipeError, match=r"tokenizer, chat template or generation_config"):
        goes_on(table, run_dir, model=model)


PRUNER = """
from dataclasses import dataclass

from tango_core.compressors.in_llm.fastv import FastV


@dataclass(frozen=True)
class Mine(FastV):
    \"\"\"Of a user.\"\"\"
"""


def test_an_edited_method_inside_the_language_model_is_refused(
    table, shapes, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path / "code")
    (tmp_path / "code").mkdir()
    file = tmp_path / "code/my_pruner.py"
    methods = [{"name": "full"}, {"name": "my_pruner:Mine", "retention": 0.6}]
    file.write_text(PRUNER)
    run_dir = asked_first(table, shapes, methods=methods)
    work, _ = goes_on(table, run_dir, methods=methods)
    assert work.answered == 2 * 2
    shutil.copy(shapes[CLIPS], table.path.parent / "videos/v0.mp4")  # something is left to ask
    file.write_text(PRUNER + "    # edited\n")
    del sys.modules["my_pruner"]
    with pytest.raises(RecipeError, match=r"the code of 'Mine r=0\.6' inside"):
        goes_on(table, run_dir, methods=methods)


@pytest.mark.parametrize("release", ["0.1", "0.2 as first noted"])
def test_a_run_of_an_earlier_release_that_noted_less_goes_on(table, shapes, release):
    run_dir = asked_first(table, shapes)
    file = run_dir / "caches.json"
    noted = json.loads(file.read_text())
    if release == "0.1":
        file.unlink()
    else:
        file.write_text(json.dumps(noted["caches"]))
    work, _ = goes_on(table, run_dir)
    assert work.answered == 2
    assert json.loads(file.read_text()) == noted
    assert list(noted["caches"]) == [name for name, _ in build(recipe(table)).methods]
