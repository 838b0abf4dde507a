"""Answers go to both harnesses' files and come back; files that they write are understood."""

import json
import sys
from datetime import datetime
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import releases
from exported_answers import COMPARED, assert_same_answers, make_answers

from jobs.harness.predictions import (
    answer_rows,
    logged_score,
    read_lmms_eval,
    read_vlmevalkit,
    write_lmms_eval,
    write_vlmevalkit,
)
from pipeline.rows import ANSWER
from pipeline.stages.answer import prompt_digest
from tango_core.benchmarks.protocols.protocol import FAILED_REPLY, NO_REPLY, NOT_LOADED
from tango_core.benchmarks.tables import read_rows
from tango_core.types import Prompt


@pytest.mark.parametrize(("name", "write"), releases.EVERY)
class TestEveryLayout:
    def test_a_run_survives_the_way_through_vlmevalkit(self, name, write, tmp_path):
        benchmark = releases.load(name, write(tmp_path / "root"))
        if benchmark.vlmevalkit_table is None:
            return
        answers = make_answers(benchmark)
        path = tmp_path / "work" / "model_dataset.tsv"
        write_vlmevalkit(answers, benchmark, path)
        back = read_vlmevalkit(path, benchmark)
        pd.testing.assert_frame_equal(back[COMPARED], answers[COMPARED])
        assert list(back.columns) == ANSWER.names
        assert set(back["cell"]) == {path.stem}

    def test_a_run_survives_the_way_through_lmms_eval(self, name, write, tmp_path):
        benchmark = releases.load(name, write(tmp_path / "root"), protocol="lmms_eval")
        answers = make_answers(benchmark)
        date = datetime(2026, 1, 2, 3, 4, 5)
        if name == "activitynet_captions":
            with pytest.raises(ValueError, match=r"the questions of benchmark\.split timelens"):
                write_lmms_eval(answers, benchmark, tmp_path / "model", date)
            return
        paths = write_lmms_eval(answers, benchmark, tmp_path / "model", date)
        guess = 0.2 if name == "nextqa" else None
        assert_same_answers(read_lmms_eval(paths, benchmark), answers, guess)
        assert all(path.name.startswith("20260102_030405_samples_") for path in paths)
        assert len(paths) == {"mvbench": 20, "tempcompass": 4, "tvbench": 3}.get(name, 1)

    @pytest.mark.parametrize("harness", ["vlmevalkit", "lmms_eval"])
    def test_what_failed_is_wrong_there_and_a_failure_here(self, name, write, harness, tmp_path):
        benchmark = releases.load(name, write(tmp_path / "root"))
        everything_failed = answer_rows({}, benchmark, "full", Path("run"))
        if harness == "lmms_eval" and name != "activitynet_captions":
            paths = write_lmms_eval(everything_failed, benchmark, tmp_path / "model")
            samples = [json.loads(line) for p in paths for line in p.read_text().splitlines()]
            written = {sample["filtered_resps"][0] for sample in samples}
            back = read_lmms_eval(paths, benchmark)
        elif benchmark.vlmevalkit_table is not None:
            path = tmp_path / "predictions.tsv"
            write_vlmevalkit(everything_failed, benchmark, path)
            written = {row["prediction"] for row in read_rows(path)}
            back = read_vlmevalkit(path, benchmark)
        else:
            return
        # `test_contract` says that no rule reads an option in these texts.
        not_loaded = "" if name == "motionbench" else NOT_LOADED
        assert written == {NO_REPLY if harness == "vlmevalkit" else not_loaded}
        if name == "motionbench":  # an empty reply is a failure under its own protocol alone
            assert not back["correct"].any()
            return
        assert set(back["status"]) == {"answer_failed"}
        assert_same_answers(back, everything_failed)


END = "question answer candidates index prediction"
COLUMNS = {
    releases.videomme_release: "index video video_path duration domain candidates sub_category "
    "task_type subtitle_path question answer prediction",
    releases.mvbench_main: f"task_type prefix data_type bound start end video {END}",
    releases.mvbench_cut: f"task_type prefix video {END}",
    releases.mlvu_release: f"task_type prefix duration video {END}",
}


@pytest.mark.parametrize("write", COLUMNS, ids=lambda write: write.__name__)
def test_columns_are_those_of_vlmevalkit(write, tmp_path):
    benchmark = releases.load(write.__name__.partition("_")[0], write(tmp_path / "root"))
    path = tmp_path / "predictions.tsv"
    write_vlmevalkit(make_answers(benchmark), benchmark, path)
    frame = pd.read_csv(path, sep="\t")
    assert list(frame.columns) == COLUMNS[write].split()
    options = [eval(cell) for cell in frame["candidates"]]
    assert all(isinstance(texts, list) and texts for texts in options)
    assert frame["prediction"][1] == NO_REPLY


def concatenated(root):
    """VLMEvalKit's table of TempCompass, which it makes of its three."""
    releases.tempcompass_vlmevalkit(root)
    tables = []
    for name in ("TempCompass_MCQ", "TempCompass_Captioning", "TempCompass_YorN"):
        one = pd.read_csv(root / f"{name}.tsv", sep="\t", dtype={"video": str})
        tables.append(one.assign(SUB_DATASET=name))
    theirs = pd.concat(tables, ignore_index=True)
    theirs["original_index"] = theirs.pop("index")
    return theirs.assign(index=range(len(theirs)))


def videomme_table(root):
    return pd.read_csv(releases.videomme_vlmevalkit(root) / "Video-MME.tsv", sep="\t")


@pytest.mark.parametrize(
    ("write", "table"),
    [(releases.videomme_release, videomme_table), (releases.tempcompass_release, concatenated)],
    ids=["videomme", "tempcompass"],
)
def test_our_file_is_vlmevalkit_s_table_cell_by_cell(write, table, tmp_path):
    theirs = table(tmp_path / "v")
    benchmark = releases.load(write.__name__.partition("_")[0], write(tmp_path / "r"))
    write_vlmevalkit(make_answers(benchmark), benchmark, tmp_path / "ours.tsv")
    ours = pd.read_csv(tmp_path / "ours.tsv", sep="\t", dtype={"video": str})
    pd.testing.assert_frame_equal(ours[theirs.columns], theirs)


def test_replies_to_hidden_answers_become_a_file_to_hand_in(tmp_path):
    benchmark = releases.load(
        "egoschema",
        releases.egoschema_authors(tmp_path / "root"),
        split="full",
        protocol="lmms_eval",
    )
    answers = make_answers(benchmark)
    assert answers[["correct", "harness_score"]].isna().all(axis=None)
    samples, handed_in = write_lmms_eval(answers, benchmark, tmp_path / "model")
    assert samples.name.endswith("_samples_egoschema.jsonl")
    ids = [record.question.id for record in benchmark.records()]
    # The second question failed, and the task reads no letter in the third reply.
    assert json.loads(handed_in.read_text()) == dict(zip(ids, [0, -1, -1], strict=True))
    pd.testing.assert_frame_equal(read_lmms_eval([samples], benchmark)[COMPARED], answers[COMPARED])


@pytest.fixture
def videomme(tmp_path):
    return releases.load("videomme", releases.videomme_release(tmp_path / "root"))


def logged(tmp_path, *samples):
    """A file of samples of Video-MME."""
    path = tmp_path / "llava" / "20250101_samples_videomme.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(map(json.dumps, samples)) + "\n")
    return path


def test_samples_as_lmms_eval_logs_them(videomme, tmp_path):
    """Lines written by hand: nested replies, a metric of the older name, another order."""
    metric = {"videomme_perception_score": {"question_id": "001-2"}}
    path = logged(
        tmp_path,
        {"doc_id": 3, "filtered_resps": "B", "target": "B"},
        {"doc_id": 0, "resps": [["C."]], "target": "C"},
        {"doc_id": 77, "filtered_resps": ["The answer is D"], **metric},
    )
    back = read_lmms_eval([path], videomme)
    assert list(back["question_id"]) == [row["question_id"] for row in releases.VIDEOMME_ROWS]
    assert list(back["text"]) == ["C.", "", "The answer is D", "B"]
    assert list(back["status"]) == ["ok", "answer_failed", "ok", "ok"]
    assert list(back["correct"]) == [True, False, True, True]
    assert set(back["cell"]) == {"llava"}


def test_samples_of_0_7_3_state_prompts_and_scores(videomme, tmp_path):
    """Single replies without lists, counts of tokens, and what the harness read and scored."""
    own = videomme.protocols["lmms_eval"].render(videomme.records()[0].question)
    metric = {"question_id": "001-1", "pred_answer": "C", "answer": "C", "score": 1.0}
    path = logged(
        tmp_path,
        {
            **{"doc_id": 0, "target": "C", "filtered_resps": "It is A, or C", "resps": ["<t>"]},
            **{"token_counts": [{"output_tokens": 4}], "doc_hash": "0", "input_media": ["a.mp4"]},
            **{"videomme_perception_score": metric, "input": own.before + own.after},
        },
        {"doc_id": 1, "filtered_resps": "A", "target": "A", "input": "Which one?"},
    )
    first, second = read_lmms_eval([path], videomme, partial=True).to_dict("records")
    assert (first["text"], first["harness_score"], first["correct"]) == ("It is A, or C", 1, False)
    assert first["prompt_digest"] == prompt_digest(own)
    assert second["prompt_digest"] == prompt_digest(Prompt("", "Which one?"))
    rule = videomme.protocol.harness_score("A", videomme.records()[1].question)
    assert second["harness_score"] == rule, "recomputed where the file states none"


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        ({"videomme_perception_score": {"pred_answer": "B", "answer": "B", "score": 0.0}}, 0),
        ({"mlvu_percetion_score": {"pred_answer": "b", "answer": "B"}}, 1),
        ({"lvb_acc": {"parsed_pred": "A", "answer": "B"}, "submission": {"id": "A"}}, 0),
        ({"avg_accuracy": {"gt-answer": "x", "match_success": True, "rating": 1}}, 1),
        ({"avg_accuracy": {"gt-answer": "x", "rating": -1}}, None),
        ({"lvbench_score": True}, 1),
        ({"charades_sta_mIOU": {"key": "reply"}}, None),
    ],
    ids=[
        "videomme",
        "mlvu",
        "longvideobench",
        "tempcompass",
        "failed judge",
        "lvbench",
        "charades",
    ],
)
def test_the_score_that_a_task_logs(metric, score):
    assert logged_score({"doc_id": 7, "target": "B", "filtered_resps": "B", **metric}) == score


@pytest.mark.parametrize(
    "reply",
    [
        FAILED_REPLY,
        f"{FAILED_REPLY}: RuntimeError",
        "Video /d/AB.mp4 can not load, check the source",
    ],
)
def test_the_harnesses_own_sentences_are_failures(videomme, reply, tmp_path):
    """Not the answer A of "API", also in files that were exported before."""
    path = logged(tmp_path, {"doc_id": 1, "filtered_resps": reply})
    (row,) = read_lmms_eval([path], videomme, partial=True).to_dict("records")
    assert (row["status"], row["correct"]) == ("answer_failed", False)
    assert pd.isna(row["choice"])
    question = videomme.records()[1].question
    assert row["harness_score"] == videomme.protocol.harness_score(reply, question)


class TestSameText:
    """MLVU holds 19 texts, with their options, about two videos each."""

    @pytest.fixture
    def roots(self, tmp_path):
        """The release and lmms-eval's table, in another order; two questions have one text."""
        rows = {stem: [dict(row) for row in table] for stem, table in releases.MLVU_ROWS.items()}
        twin = {**rows["1_plotQA"][0], "video": "movie_2.mp4", "answer": "Pink"}
        rows["1_plotQA"].append(twin)
        for stem, table in rows.items():
            releases.write_json(tmp_path / "release" / "json" / f"{stem}.json", table)
        asked = []
        for stem, row in ((s, r) for s, table in reversed(rows.items()) for r in table):
            if row["question"] and row["answer"] in row["candidates"]:
                options = zip("ABCD", row["candidates"], strict=True)
                lines = [row["question"], *(f"({x}) {text}" for x, text in options), ""]
                right = "ABCD"[row["candidates"].index(row["answer"])]
                own = {"video_name": row["video"], "question": "\n".join(lines), "answer": right}
                asked.append({**own, "task_type": stem[2:]})
        releases.write_parquet(tmp_path / "table" / "data" / "test-00000-of-00001.parquet", asked)
        return tmp_path / "release", tmp_path / "table"

    def test_a_file_of_another_order_is_refused_where_the_text_could_be_either(
        self, roots, tmp_path
    ):
        release, table = (releases.load("mlvu", root) for root in roots)
        paths = write_lmms_eval(make_answers(table), table, tmp_path / "m")
        message = (
            r"line \d+: doc_id \d+ matches 2 questions of mlvu with the same text under .*; "
            "set the root to the release of the benchmark that the harness used"
        )
        with pytest.raises(ValueError, match=message) as caught:
            read_lmms_eval(paths, release)
        assert len(str(caught.value).splitlines()) == 1


class TestMistakes:
    def test_answers_of_an_unfinished_cell(self, videomme, tmp_path):
        rows, message = make_answers(videomme)[:-1], r"1 questions of videomme have no answer"
        with pytest.raises(ValueError, match=rf"{message}, e\.g\. '002-2'"):
            write_vlmevalkit(rows, videomme, tmp_path / "x.tsv")

    def test_files_that_are_no_predictions_of_the_benchmark(self, videomme, tmp_path):
        other = {"index": 0, "video": "v", "question": "Else?", "prediction": "A"}
        for row, message in (
            ({"index": 0, "question": "How?"}, "row 1: no columns 'index' and 'prediction'"),
            (other, r"asks 'Else\?' about 'v', matches no question"),
            ({"index": "one", "prediction": "A"}, "row 1: index must be a number, got 'one'"),
        ):
            releases.write_json(tmp_path / "x.json", [row])
            with pytest.raises(ValueError, match=message):
                read_vlmevalkit(tmp_path / "x.json", videomme)

    def test_spreadsheets_without_their_package_and_damaged_ones(
        self, videomme, tmp_path, monkeypatch
    ):
        (tmp_path / "x.xlsx").write_bytes(b"not a workbook")
        with pytest.raises(ValueError, match=r"x\.xlsx is no spreadsheet of VLMEvalKit"):
            read_vlmevalkit(tmp_path / "x.xlsx", videomme)
        (tmp_path / "x.xlsx").write_bytes(b"PK")
        monkeypatch.setitem(sys.modules, "openpyxl", None)
        monkeypatch.setattr(pd, "read_excel", partial(pd.read_excel, engine="openpyxl"))
        with pytest.raises(ValueError, match="pip install openpyxl, or run VLMEvalKit"):
            read_vlmevalkit(tmp_path / "x.xlsx", videomme)

    def test_samples_of_another_task_of_another_release_and_twice(self, videomme, tmp_path):
        other = tmp_path / "20250101_samples_mmmu.jsonl"
        other.touch()
        with pytest.raises(ValueError, match=r"not samples of videomme; expected .* task videomme"):
            read_lmms_eval([other], videomme)
        path = logged(tmp_path, {"doc_id": 2699, "filtered_resps": ["A"]})
        with pytest.raises(ValueError, match="line 1: doc_id 2699 matches no question of videomme"):
            read_lmms_eval([path], videomme)
        path.write_text('{"doc_id": 0, "filtered_resps": ["A"]}\n' * 2)
        with pytest.raises(ValueError, match="a second reply to question 001-1 of videomme"):
            read_lmms_eval([path], videomme)
