"""MLVU: the seven tasks, the releases' oddities, the harnesses' tables."""

from collections import Counter

import pandas as pd
import pytest
from releases import (
    MLVU_ROWS,
    asked,
    load,
    mlvu_lmms_eval,
    mlvu_release,
    mlvu_vlmevalkit,
    touch,
)


@pytest.mark.parametrize("folder", ["MLVU/json", "json", "."])
def test_mlvu_reads_the_seven_tasks(folder, tmp_path, caplog):
    touch(tmp_path, "MLVU/video/1_plotQA/movie_1.mp4")
    benchmark = load("mlvu", mlvu_release(tmp_path, folder), split="dev")
    tasks = Counter(question.groups["task"] for question in asked(benchmark))
    assert tasks == {stem[2:]: 2 if stem == "1_plotQA" else 1 for stem in MLVU_ROWS}
    assert "7_topic_reasoning.json, row 1: question and answer are empty; skipped" in caplog.text
    first = next(benchmark.items())
    assert first.video_id == "1_plotQA/movie_1"
    assert first.path == str(tmp_path / "MLVU" / "video" / "1_plotQA" / "movie_1.mp4")


def test_mlvu_oddities_of_the_release_are_kept_and_noted(tmp_path):
    records = {r.question.id: r for r in load("mlvu", mlvu_release(tmp_path)).records()}
    assert records["plotQA-1"].question.answer == 2  # of two equal options VLMEvalKit's: the last
    assert records["plotQA-1"].notes == ("the right option 'Three' occurs twice",)
    assert records["needle-0"].question.answer is None
    assert records["needle-0"].notes == (
        "the answer 'A flying dog' is none of the options; not scored",
    )
    assert records["ego-0"].question.answer == 2
    assert records["ego-0"].notes == ("the right option is empty",)
    assert records["ego-0"].question.choices[0] == "Shelf "
    assert records["topic_reasoning-1"].index == 8


def test_mlvu_tables_of_both_harnesses_ask_the_same(tmp_path):
    table = load("mlvu", mlvu_vlmevalkit(tmp_path / "v"))
    one = load("mlvu", mlvu_lmms_eval(tmp_path / "l"), protocol="lmms_eval")
    texts = {question.text: question for question in asked(table)}
    for question in asked(one):
        assert texts[question.text].choices == question.choices
    cell = "In what\norder?\n(A) ab\n(B) ba\n(C) aa\n(D) bb\n"
    prompts = [one.protocol.render(question).after for question in asked(one)]
    assert f"{cell}\nOnly give the best option.\nBest option: (" in prompts


def test_mlvu_in_one_folder_groups_by_file_across_tasks(tmp_path):
    touch(tmp_path, "movie_1.mp4")
    items = {item.video_id: item for item in load("mlvu", mlvu_lmms_eval(tmp_path)).items()}
    assert [q.groups["task"] for q in items["movie_1"].questions] == [
        "plotQA",
        "plotQA",
        "topic_reasoning",
    ]
    assert items["movie_1"].path == str(tmp_path / "movie_1.mp4")


def test_mlvu_needs_all_seven_files(tmp_path):
    mlvu_release(tmp_path)
    (tmp_path / "MLVU" / "json" / "5_order.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"incomplete, missing 5_order\.json"):
        load("mlvu", tmp_path)


def test_mlvu_prompt_of_lmms_eval_is_its_table_s_cell_with_the_line_break_at_its_end(tmp_path):
    """The cell of every row ends in a line break, so an empty line precedes the instruction."""
    mlvu_lmms_eval(tmp_path)
    cells = pd.read_parquet(tmp_path / "data" / "test-00000-of-00001.parquet")["question"]
    benchmark = load("mlvu", tmp_path, protocol="lmms_eval")
    for record, cell in zip(benchmark.records(), cells, strict=True):
        prompt = benchmark.protocol.render(record.question)
        expected = f"{cell}\nOnly give the best option.\nBest option: ("
        assert (prompt.before, prompt.after) == ("", expected)
