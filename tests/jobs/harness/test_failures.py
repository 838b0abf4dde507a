"""A question that was never answered is wrong wherever its file is rated."""

import json
from pathlib import Path

import pandas as pd
import pytest
from exported_answers import COMPARED, RELEASES
from releases import videomme_release

from jobs.harness.lmms_eval import read_lmms_eval, write_lmms_eval
from jobs.harness.predictions import answer_rows
from jobs.harness.vlmevalkit import read_vlmevalkit, write_vlmevalkit
from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.protocols.protocol import FAILED_REPLY, NO_REPLY, NOT_LOADED


@pytest.fixture(params=RELEASES, ids=lambda r: r[1].__name__)
def benchmark(request, tmp_path):
    name, write = request.param
    return build_benchmark(name, root=str(write(tmp_path / "root")))


@pytest.mark.parametrize("harness", ["vlmevalkit", "lmms_eval"])
def test_what_is_exported_is_wrong_there_and_a_failure_here(benchmark, harness, tmp_path):
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
def test_the_harnesses_own_sentences_are_failures(reply, tmp_path):
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


@pytest.mark.parametrize("index", [None, {"at": 1}, [1], "", "one", float("inf")])
def test_an_index_that_is_no_number_is_refused_in_one_line(index, tmp_path):
    benchmark = build_benchmark("videomme", root=str(videomme_release(tmp_path / "root")))
    path = tmp_path / "replies.json"
    path.write_text(json.dumps([{"index": index, "prediction": "A"}]))
    with pytest.raises(ValueError, match=r"replies\.json, row 1: index must be a whole number"):
        read_vlmevalkit(path, benchmark)
