"""Answers go to both harnesses and come back; files they write are understood."""

import json
import sys
from datetime import datetime
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from releases import (
    MLVU_ROWS,
    VIDEOMME_ROWS,
    longvideobench_parquet,
    longvideobench_release,
    longvideobench_vlmevalkit,
    mlvu_lmms_eval,
    mlvu_release,
    mlvu_vlmevalkit,
    mvbench_cut,
    mvbench_main,
    videomme_release,
    videomme_vlmevalkit,
    write_json,
    write_parquet,
)

from jobs.harness.lmms_eval import read_lmms_eval, write_lmms_eval
from jobs.harness.predictions import answer_rows, replies_of
from jobs.harness.vlmevalkit import dataset_name, read_vlmevalkit, write_vlmevalkit
from pipeline.rows import ANSWER
from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.protocols.failures import FAILED_REPLY, NO_REPLY, NOT_LOADED

RELEASES = [
    ("videomme", videomme_release),
    ("videomme", videomme_vlmevalkit),
    ("longvideobench", longvideobench_release),
    ("longvideobench", longvideobench_parquet),
    ("longvideobench", longvideobench_vlmevalkit),
    ("mlvu", mlvu_release),
    ("mlvu", mlvu_lmms_eval),
    ("mvbench", mvbench_main),
    ("mvbench", mvbench_cut),
]
REPLIES = ["A", "(B)", 'It is "C".\nI think', "", "Grün\t2", "D. Four", "nan", "NA"]
COMPARED = ["video_id", "question_id", "status", "text", "choice", "answer", "correct", "groups"]


@pytest.fixture(params=RELEASES, ids=lambda r: r[1].__name__)
def benchmark(request, tmp_path):
    name, write = request.param
    return build_benchmark(name, root=str(write(tmp_path / "root")))


def make_answers(benchmark, cell="tango r=0.1"):
    """A run's rows: real replies, and one clip that failed."""
    replies = {
        record.question.id: REPLIES[at % len(REPLIES)]
        for at, record in enumerate(benchmark.records())
    }
    replies[benchmark.records()[1].question.id] = None
    return answer_rows(replies, benchmark, cell, Path("run"))


@pytest.mark.parametrize("suffix", [".tsv", ".json"])
def test_a_run_survives_the_way_through_vlmevalkit(benchmark, suffix, tmp_path):
    answers = make_answers(benchmark)
    path = tmp_path / "work" / f"model_{dataset_name(benchmark)}{suffix}"
    write_vlmevalkit(answers, benchmark, path)
    back = read_vlmevalkit(path, benchmark)
    pd.testing.assert_frame_equal(back[COMPARED], answers[COMPARED])
    assert list(back.columns) == ANSWER.names
    assert set(back["cell"]) == {f"model_{dataset_name(benchmark)}"}


def test_a_run_survives_the_way_through_lmms_eval(benchmark, tmp_path):
    answers = make_answers(benchmark)
    paths = write_lmms_eval(answers, benchmark, tmp_path / "model", datetime(2026, 1, 2, 3, 4, 5))
    back = read_lmms_eval(paths, benchmark)
    pd.testing.assert_frame_equal(back[COMPARED], answers[COMPARED])
    assert all(path.name.startswith("20260102_030405_samples_") for path in paths)
    assert len(paths) == (20 if benchmark.name == "mvbench" else 1)


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


class TestFailures:
    """A question that was never answered is wrong wherever its file is rated."""

    @pytest.mark.parametrize("harness", ["vlmevalkit", "lmms_eval"])
    def test_what_is_exported_is_wrong_there_and_a_failure_here(self, benchmark, harness, tmp_path):
        everything_failed = answer_rows({}, benchmark, "full", Path("run"))
        if harness == "vlmevalkit":
            path = tmp_path / "predictions.json"
            write_vlmevalkit(everything_failed, benchmark, path)
            written = {row["prediction"] for row in json.loads(path.read_text())}
            back = read_vlmevalkit(path, benchmark)
        else:
            paths = write_lmms_eval(everything_failed, benchmark, tmp_path / "model")
            samples = [json.loads(line) for p in paths for line in p.read_text().splitlines()]
            written = {sample["filtered_resps"][0] for sample in samples}
            back = read_lmms_eval(paths, benchmark)
        assert written == {NO_REPLY if harness == "vlmevalkit" else NOT_LOADED}
        assert set(back["status"]) == {"answer_failed"}
        pd.testing.assert_frame_equal(back[COMPARED], everything_failed[COMPARED])
        guesses = (benchmark.name, harness) == ("longvideobench", "lmms_eval")
        for name, protocol in benchmark.protocols.items():
            if name.startswith(harness) and not guesses:
                scores = {
                    protocol.harness_score(reply, record.question)
                    for record in benchmark.records()
                    for reply in written
                }
                assert scores <= {0.0, None}

    @pytest.mark.parametrize(
        "reply",
        [
            FAILED_REPLY,
            f"{FAILED_REPLY}: RuntimeError",
            "Video /d/AB.mp4 can not load, check the source",
        ],
    )
    def test_the_harnesses_own_sentences_are_failures(self, reply, tmp_path):
        """Not the answer A of "API", also in files that were exported before."""
        benchmark = build_benchmark("videomme", root=str(videomme_release(tmp_path / "root")))
        path = tmp_path / "m" / "20250101_samples_videomme.jsonl"
        path.parent.mkdir()
        path.write_text(json.dumps({"doc_id": 1, "filtered_resps": reply}) + "\n")
        (row,) = read_lmms_eval([path], benchmark, partial=True).to_dict("records")
        assert (row["status"], row["correct"]) == ("answer_failed", False)
        assert pd.isna(row["choice"])
        assert row["harness_score"] == benchmark.protocol.harness_score(
            reply, benchmark.records()[1].question
        )


class TestTheSameTextTwice:
    """MLVU holds 19 texts, with their options, about two videos each."""

    @pytest.fixture
    def roots(self, tmp_path):
        """The release and lmms-eval's table, in another order; two questions have one text."""
        rows = {stem: [dict(row) for row in table] for stem, table in MLVU_ROWS.items()}
        twin = {**rows["1_plotQA"][0], "video": "movie_2.mp4", "answer": "Pink"}
        rows["1_plotQA"].append(twin)
        for stem, table in rows.items():
            write_json(tmp_path / "release" / "json" / f"{stem}.json", table)
        asked = [
            {
                "video_name": row["video"],
                "question": "\n".join(
                    [row["question"]]
                    + [f"({x}) {o}" for x, o in zip("ABCD", row["candidates"], strict=True)]
                    + [""]
                ),
                "answer": "ABCD"[row["candidates"].index(row["answer"])],
                "task_type": stem[2:],
            }
            for stem, table in reversed(rows.items())
            for row in table
            if row["question"] and row["answer"] in row["candidates"]
        ]
        write_parquet(tmp_path / "table" / "data" / "test-00000-of-00001.parquet", asked)
        return tmp_path / "release", tmp_path / "table"

    def test_each_reply_comes_back_to_its_own_video(self, roots, tmp_path):
        for root in roots:
            benchmark = build_benchmark("mlvu", root=str(root), protocol="lmms_eval")
            ids = [record.question.id for record in benchmark.records()]
            replies = {question: "ABCD"[at % 4] for at, question in enumerate(ids)}
            answers = answer_rows(replies, benchmark, "full", Path("run"))
            paths = write_lmms_eval(answers, benchmark, tmp_path / root.name)
            back = read_lmms_eval(paths, benchmark)
            assert dict(zip(back["question_id"], back["text"], strict=True)) == replies

    def test_a_file_of_another_order_is_refused_where_the_text_could_be_either(
        self, roots, tmp_path
    ):
        release, table = (build_benchmark("mlvu", root=str(root)) for root in roots)
        paths = write_lmms_eval(make_answers(table), table, tmp_path / "m")
        message = (
            r"line \d+: doc_id \d+ may be 2 questions of mlvu with the same text under .*; "
            "set the root to the copy of the release that was asked"
        )
        with pytest.raises(ValueError, match=message) as caught:
            read_lmms_eval(paths, release)
        assert len(str(caught.value).splitlines()) == 1

    def test_a_second_reply_to_a_question_is_refused(self, roots, tmp_path):
        benchmark = build_benchmark("mlvu", root=str(roots[1]))
        (path,) = write_lmms_eval(make_answers(benchmark), benchmark, tmp_path / "m")
        path.write_text(path.read_text() * 2)
        with pytest.raises(
            ValueError, match=r"a second reply to question .* of mlvu; import files"
        ):
            read_lmms_eval([path], benchmark)

    def test_vlmevalkit_s_file_of_another_order_is_refused_as_well(self, tmp_path):
        rows = {stem: [dict(row) for row in table] for stem, table in MLVU_ROWS.items()}
        rows["1_plotQA"].append(dict(rows["1_plotQA"][0]))
        for stem, table in rows.items():
            write_json(tmp_path / "json" / f"{stem}.json", table)
        benchmark = build_benchmark("mlvu", root=str(tmp_path))
        path = tmp_path / "x.json"
        write_vlmevalkit(make_answers(benchmark), benchmark, path)
        table = json.loads(path.read_text())
        write_json(path, [{**row, "index": row["index"] + 1} for row in table])
        with pytest.raises(
            ValueError, match=r"asks 'What colour\?' about 'movie_1', which stands 2"
        ):
            read_vlmevalkit(path, benchmark)


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
        with pytest.raises(ValueError, match=r"index 0 asks 'Else\?' about 'v', which is not a"):
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
