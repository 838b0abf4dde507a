"""Answers go to both harnesses and come back; files they write are understood."""

import json
import sys
from datetime import datetime
from functools import partial

import pandas as pd
import pytest
from exported_answers import COMPARED, RELEASES, make_answers
from newer_releases import (
    lvbench_authors,
    lvbench_release,
    tempcompass_release,
    tempcompass_vlmevalkit,
)
from releases import (
    VIDEOMME_ROWS,
    longvideobench_parquet,
    longvideobench_release,
    longvideobench_vlmevalkit,
    mlvu_release,
    mlvu_vlmevalkit,
    mvbench_cut,
    mvbench_main,
    videomme_release,
    videomme_vlmevalkit,
    write_json,
)

from jobs.harness.lmms_eval import read_lmms_eval, write_lmms_eval
from jobs.harness.predictions import replies_of
from jobs.harness.vlmevalkit import read_vlmevalkit, table_of, write_vlmevalkit
from pipeline.rows import ANSWER
from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.protocols.protocol import NO_REPLY


@pytest.fixture(params=RELEASES, ids=lambda r: r[1].__name__)
def benchmark(request, tmp_path):
    name, write = request.param
    return build_benchmark(name, root=str(write(tmp_path / "root")))


@pytest.mark.parametrize("suffix", [".tsv", ".json"])
def test_a_run_survives_the_way_through_vlmevalkit(benchmark, suffix, tmp_path):
    answers = make_answers(benchmark)
    path = tmp_path / "work" / f"model_{table_of(benchmark).dataset}{suffix}"
    write_vlmevalkit(answers, benchmark, path)
    back = read_vlmevalkit(path, benchmark)
    pd.testing.assert_frame_equal(back[COMPARED], answers[COMPARED])
    assert list(back.columns) == ANSWER.names
    assert set(back["cell"]) == {f"model_{table_of(benchmark).dataset}"}


def test_a_run_survives_the_way_through_lmms_eval(benchmark, tmp_path):
    answers = make_answers(benchmark)
    paths = write_lmms_eval(answers, benchmark, tmp_path / "model", datetime(2026, 1, 2, 3, 4, 5))
    back = read_lmms_eval(paths, benchmark)
    pd.testing.assert_frame_equal(back[COMPARED], answers[COMPARED])
    assert all(path.name.startswith("20260102_030405_samples_") for path in paths)
    assert len(paths) == {"mvbench": 20, "tempcompass": 4}.get(benchmark.name, 1)


@pytest.mark.parametrize(
    ("write", "name", "columns"),
    [
        (
            videomme_release,
            "videomme",
            "index video video_path duration domain candidates sub_category task_type "
            "subtitle_path question answer prediction",
        ),
        (
            mvbench_main,
            "mvbench",
            "task_type prefix data_type bound start end video question answer candidates index "
            "prediction",
        ),
        (
            mvbench_cut,
            "mvbench",
            "task_type prefix video question answer candidates index prediction",
        ),
        (
            mlvu_release,
            "mlvu",
            "task_type prefix duration video question answer candidates index prediction",
        ),
    ],
)
def test_columns_are_those_of_vlmevalkit(write, name, columns, tmp_path):
    benchmark = build_benchmark(name, root=str(write(tmp_path / "root")))
    path = tmp_path / "predictions.tsv"
    write_vlmevalkit(make_answers(benchmark), benchmark, path)
    frame = pd.read_csv(path, sep="\t")
    assert list(frame.columns) == columns.split()
    options = [eval(cell) for cell in frame["candidates"]]
    assert all(isinstance(texts, list) and texts for texts in options)
    assert frame["prediction"][1] == NO_REPLY


def test_columns_of_longvideobench_are_those_its_rating_uses(tmp_path):
    benchmark = build_benchmark(
        "longvideobench", root=str(longvideobench_parquet(tmp_path / "root"))
    )
    path = tmp_path / "predictions.json"
    write_vlmevalkit(make_answers(benchmark), benchmark, path)
    row = json.loads(path.read_text())[0]
    assert (row["index"], row["correct_choice"], row["duration_group"]) == (0, 4, 600)
    assert row["question_category"] == "S2E"
    assert eval(row["candidates"])[4] == "naps"
    assert row["video_path"] == "./videos/long-_1.mp4"


def test_vlmevalkit_rates_our_file_as_its_own(tmp_path):
    """A Video-MME table written by its own code, and ours, agree cell by cell."""
    theirs = pd.read_csv(videomme_vlmevalkit(tmp_path / "v") / "Video-MME.tsv", sep="\t")
    benchmark = build_benchmark("videomme", root=str(videomme_release(tmp_path / "r")))
    write_vlmevalkit(make_answers(benchmark), benchmark, tmp_path / "ours.tsv")
    ours = pd.read_csv(tmp_path / "ours.tsv", sep="\t")
    pd.testing.assert_frame_equal(ours[theirs.columns], theirs)


def test_vlmevalkit_takes_our_tempcompass_apart_as_its_own(tmp_path):
    """The table that it makes of its three, and ours, agree cell by cell."""
    root = tempcompass_vlmevalkit(tmp_path / "v")
    tables = []
    for name in ("TempCompass_MCQ", "TempCompass_Captioning", "TempCompass_YorN"):
        one = pd.read_csv(root / f"{name}.tsv", sep="\t", dtype={"video": str})
        tables.append(one.assign(SUB_DATASET=name))
    theirs = pd.concat(tables, ignore_index=True)
    theirs["original_index"] = theirs.pop("index")
    theirs["index"] = range(len(theirs))
    benchmark = build_benchmark("tempcompass", root=str(tempcompass_release(tmp_path / "r")))
    write_vlmevalkit(make_answers(benchmark), benchmark, tmp_path / "m_TempCompass.tsv")
    ours = pd.read_csv(tmp_path / "m_TempCompass.tsv", sep="\t", dtype={"video": str})
    pd.testing.assert_frame_equal(ours[theirs.columns], theirs)


def test_lvbench_goes_to_lmms_eval_and_back_and_is_not_in_vlmevalkit(tmp_path):
    for write in (lvbench_release, lvbench_authors):
        root = write(tmp_path / write.__name__)
        benchmark = build_benchmark("lvbench", root=str(root), protocol="lmms_eval")
        answers = make_answers(benchmark)
        paths = write_lmms_eval(answers, benchmark, tmp_path / write.__name__ / "model")
        assert [path.name.partition("_samples_")[2] for path in paths] == ["lvbench.jsonl"]
        pd.testing.assert_frame_equal(read_lmms_eval(paths, benchmark)[COMPARED], answers[COMPARED])
        with pytest.raises(ValueError, match="'lvbench' is not in VLMEvalKit"):
            write_vlmevalkit(answers, benchmark, tmp_path / "a.tsv")


def test_another_copy_of_the_release_is_matched_by_its_questions(tmp_path):
    """MLVU with and without its empty row: the same questions under other numbers."""
    release = build_benchmark("mlvu", root=str(mlvu_release(tmp_path / "r")))
    table = build_benchmark("mlvu", root=str(mlvu_vlmevalkit(tmp_path / "v")))
    assert release.records()[-1].index == table.records()[-1].index + 1
    write_vlmevalkit(make_answers(table), table, tmp_path / "predictions.tsv")
    back = read_vlmevalkit(tmp_path / "predictions.tsv", release)
    replies = replies_of(make_answers(table), table, "").values()
    assert list(back["text"]) == list(replies)


@pytest.mark.parametrize("write", [longvideobench_release, longvideobench_parquet])
def test_a_file_of_longvideobench_names_videos_by_their_id(write, tmp_path):
    """VLMEvalKit's own table, with its column `video`: not always the name of the file."""
    table = pd.read_csv(longvideobench_vlmevalkit(tmp_path / "v") / "LongVideoBench.tsv", sep="\t")
    assert (table["video"] + ".mp4" != table["video_path"].str.removeprefix("./videos/")).any()
    table.assign(prediction="A").to_csv(tmp_path / "m_LongVideoBench.tsv", sep="\t", index=False)
    benchmark = build_benchmark("longvideobench", root=str(write(tmp_path / "root")))
    back = read_vlmevalkit(tmp_path / "m_LongVideoBench.tsv", benchmark)
    assert list(back["text"]) == ["A"] * 3


def test_samples_as_lmms_eval_logs_them(tmp_path):
    """Lines written by hand: nested replies, a metric of the older name, another order."""
    benchmark = build_benchmark("videomme", root=str(videomme_release(tmp_path / "root")))
    lines = [
        {"doc_id": 3, "filtered_resps": "B", "target": "B"},
        {"doc_id": 0, "resps": [["C."]], "target": "C"},
        {
            "doc_id": 77,
            "filtered_resps": ["The answer is D"],
            "videomme_perception_score": {"question_id": "001-2"},
        },
    ]
    path = tmp_path / "llava" / "20250101_samples_videomme.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    back = read_lmms_eval([path], benchmark)
    assert list(back["question_id"]) == [row["question_id"] for row in VIDEOMME_ROWS]
    assert list(back["text"]) == ["C.", "", "The answer is D", "B"]
    assert list(back["status"]) == ["ok", "answer_failed", "ok", "ok"]
    assert list(back["correct"]) == [True, False, True, True]
    assert set(back["cell"]) == {"llava"}


def test_metrics_in_the_samples_are_those_lmms_eval_would_compute(tmp_path):
    benchmark = build_benchmark("videomme", root=str(videomme_release(tmp_path / "root")))
    (path,) = write_lmms_eval(make_answers(benchmark), benchmark, tmp_path / "model")
    first = json.loads(path.read_text().splitlines()[0])
    assert first["videomme_perception_score"] == {
        "question_id": "001-1",
        "duration": "short",
        "category": "Knowledge",
        "sub_category": "Geography",
        "task_category": "Counting Problem",
        "pred_answer": "A",
        "answer": "C",
        "score": 0.0,
        "videoID": "aAaAaAaAaA0",
    }
    assert first["target"] == "C"
    assert first["filtered_resps"] == ["A"]
    assert first["input"].startswith("Select the best answer")


class TestMistakes:
    @pytest.fixture
    def videomme(self, tmp_path):
        return build_benchmark("videomme", root=str(videomme_release(tmp_path / "root")))

    def test_several_cells(self, videomme, tmp_path):
        both = pd.concat([make_answers(videomme, "full"), make_answers(videomme, "tango")])
        with pytest.raises(ValueError, match=r"one cell of one benchmark.*'full', 'tango'"):
            write_vlmevalkit(both, videomme, tmp_path / "x.tsv")

    def test_a_run_that_is_not_finished(self, videomme, tmp_path):
        with pytest.raises(
            ValueError, match=r"1 questions of videomme have no answer, e\.g\. '002-2'"
        ):
            write_lmms_eval(make_answers(videomme)[:-1], videomme, tmp_path)

    def test_another_suffix(self, videomme, tmp_path):
        with pytest.raises(ValueError, match=r"must end in \.tsv or \.json"):
            write_vlmevalkit(make_answers(videomme), videomme, tmp_path / "x.csv")

    def test_a_file_that_holds_no_predictions(self, videomme, tmp_path):
        write_json(tmp_path / "x.json", [{"index": 0, "question": "How many?"}])
        with pytest.raises(ValueError, match="row 1: no columns 'index' and 'prediction'"):
            read_vlmevalkit(tmp_path / "x.json", videomme)

    def test_predictions_for_another_benchmark(self, videomme, tmp_path):
        rows = [{"index": 0, "video": "v", "question": "Else?", "prediction": "A"}]
        write_json(tmp_path / "x.json", rows)
        with pytest.raises(ValueError, match=r"asks 'Else\?' about 'v', is no question"):
            read_vlmevalkit(tmp_path / "x.json", videomme)

    def test_a_spreadsheet_without_its_package(self, videomme, tmp_path, monkeypatch):
        (tmp_path / "x.xlsx").write_bytes(b"PK")
        monkeypatch.setitem(sys.modules, "openpyxl", None)
        monkeypatch.setattr(pd, "read_excel", partial(pd.read_excel, engine="openpyxl"))
        with pytest.raises(ModuleNotFoundError, match="pip install openpyxl, or run VLMEvalKit"):
            read_vlmevalkit(tmp_path / "x.xlsx", videomme)

    def test_a_damaged_spreadsheet(self, videomme, tmp_path):
        (tmp_path / "x.xlsx").write_bytes(b"not a workbook")
        with pytest.raises(ValueError, match=r"x\.xlsx is no spreadsheet of VLMEvalKit"):
            read_vlmevalkit(tmp_path / "x.xlsx", videomme)

    def test_samples_of_another_task(self, videomme, tmp_path):
        path = tmp_path / "20250101_samples_mmmu.jsonl"
        path.touch()
        with pytest.raises(ValueError, match=r"not samples of videomme; expected .* task videomme"):
            read_lmms_eval([path], videomme)

    def test_a_sample_of_another_release(self, videomme, tmp_path):
        path = tmp_path / "20250101_samples_videomme.jsonl"
        path.write_text('{"doc_id": 2699, "filtered_resps": ["A"]}\n')
        with pytest.raises(ValueError, match="line 1: doc_id 2699 is no question of videomme"):
            read_lmms_eval([path], videomme)
