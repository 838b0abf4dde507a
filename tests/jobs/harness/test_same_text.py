"""MLVU holds 19 texts, with their options, about two videos each."""

import json
from pathlib import Path

import pytest
from exported_answers import make_answers
from releases import MLVU_ROWS, write_json, write_parquet

from jobs.harness.lmms_eval import read_lmms_eval, write_lmms_eval
from jobs.harness.predictions import answer_rows
from jobs.harness.vlmevalkit import read_vlmevalkit, write_vlmevalkit
from tango_core.benchmarks import build_benchmark


@pytest.fixture
def roots(tmp_path):
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


def test_each_reply_comes_back_to_its_own_video(roots, tmp_path):
    for root in roots:
        benchmark = build_benchmark("mlvu", root=str(root), protocol="lmms_eval")
        ids = [record.question.id for record in benchmark.records()]
        replies = {question: "ABCD"[at % 4] for at, question in enumerate(ids)}
        answers = answer_rows(replies, benchmark, "full", Path("run"))
        paths = write_lmms_eval(answers, benchmark, tmp_path / root.name)
        back = read_lmms_eval(paths, benchmark)
        assert dict(zip(back["question_id"], back["text"], strict=True)) == replies


def test_a_file_of_another_order_is_refused_where_the_text_could_be_either(roots, tmp_path):
    release, table = (build_benchmark("mlvu", root=str(root)) for root in roots)
    paths = write_lmms_eval(make_answers(table), table, tmp_path / "m")
    message = (
        r"line \d+: doc_id \d+ may be 2 questions of mlvu with the same text under .*; "
        "set the root to the copy of the release that was asked"
    )
    with pytest.raises(ValueError, match=message) as caught:
        read_lmms_eval(paths, release)
    assert len(str(caught.value).splitlines()) == 1


def test_a_second_reply_to_a_question_is_refused(roots, tmp_path):
    benchmark = build_benchmark("mlvu", root=str(roots[1]))
    (path,) = write_lmms_eval(make_answers(benchmark), benchmark, tmp_path / "m")
    path.write_text(path.read_text() * 2)
    with pytest.raises(ValueError, match=r"a second reply to question .* of mlvu; import files"):
        read_lmms_eval([path], benchmark)


def test_vlmevalkit_s_file_of_another_order_is_refused_as_well(tmp_path):
    rows = {stem: [dict(row) for row in table] for stem, table in MLVU_ROWS.items()}
    # One behind the other, so that an index that is one too high names the other one.
    rows["1_plotQA"].insert(0, dict(rows["1_plotQA"][0]))
    for stem, table in rows.items():
        write_json(tmp_path / "json" / f"{stem}.json", table)
    benchmark = build_benchmark("mlvu", root=str(tmp_path))
    path = tmp_path / "x.json"
    write_vlmevalkit(make_answers(benchmark), benchmark, path)
    table = json.loads(path.read_text())
    write_json(path, [{**row, "index": row["index"] + 1} for row in table[:1] + table[2:]])
    with pytest.raises(ValueError, match=r"'What colour\?' about 'movie_1', may be 2 q"):
        read_vlmevalkit(path, benchmark)
