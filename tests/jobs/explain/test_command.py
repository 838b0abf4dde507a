"""`tango explain`: runs, harness files, published scores and older runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
import yaml
from fake_answers import cell, facts_of, fake_answers, summary_json, write_run
from releases import videomme_release

from jobs.explain.explanation import RULE
from jobs.harness.predictions import answer_rows
from jobs.results.facts import JobFacts
from pipeline.stages.answer import prompt_digest
from tango_core.benchmarks import build_benchmark
from tango_core.compressors import build_method

CELLS = (cell("full"), cell("tango", 0.1), cell("random", 0.1))
# Right, read as "A" by the harness alone, wrong, right.
REPLIES = ["C", "Answer unknown", "A", "B"]


@pytest.fixture
def runs(tmp_path):
    """Two finished runs of three cells that record no digests, as older releases wrote them."""
    folders = []
    for name, seed in (("first", 0), ("second", 1)):
        facts = replace(facts_of(*CELLS), run_id=name)
        rows = fake_answers(facts, num_clips=12, failed_clips=(3,) if seed else ())
        if seed:  # other replies of one method, and two clips that only the first run has
            rows = rows[~rows["video_id"].isin(["shapes-0000", "shapes-0001"])]
            changed = (rows["cell"] == "tango r=0.1") & (rows["status"] == "ok")
            rows.loc[changed, ["text", "choice", "correct"]] = ["X.", None, False]
        folders.append(write_run(tmp_path / name, rows, facts))
    return folders


def explained(tango, *arguments):
    """What `--json` prints."""
    code, out, err = tango("explain", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_points_sum_to_the_difference_of_the_summaries(tango, runs):
    found = explained(tango, *runs)
    assert [one["a"]["cell"] for one in found] == [entry.name for entry in CELLS]
    answers = [pd.read_parquet(run / "answers") for run in runs]
    for one, entry in zip(found, CELLS, strict=True):
        means = [
            summary_json(rows[rows["cell"] == entry.name], facts_of(entry))["accuracy"]
            for rows in answers
        ]
        assert [one["a"]["score"], one["b"]["score"]] == pytest.approx(means)
        points = sum(share["points"] for share in one["causes"])
        assert points == pytest.approx(100 * (means[1] - means[0]))


def test_missing_records_of_older_runs_are_listed(tango, runs):
    (one,) = explained(tango, *runs, "--cell", "tango r=0.1")
    shares = {share["cause"]: share for share in one["causes"]}
    assert shares["questions that only A has"]["questions"] == 6
    assert shares["failed in one of the two"]["questions"] == 3
    assert shares["what is left: not recorded"]["questions"] > 0
    assert not shares["same frames and prompt, another reply"]["questions"]
    listed = " ".join(one["not_recorded"])
    for what in ("weights", "prompts", "frames", "tokens"):
        assert what in listed
    assert "of A and B" in listed


def test_output_has_examples_and_fits_80_columns(tango, runs):
    for options, words in (
        (("--cell", "tango r=0.1"), ("questions that only A has (first 6 of 6)", "not recorded:")),
        ((), ("largest cause",)),
    ):
        code, out, _ = tango("explain", *runs, *options)
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80
        assert all(word in out for word in words)


def test_two_cells_of_one_run_differ_in_tokens(tango, runs):
    (one,) = explained(tango, runs[0], runs[0], "--cell", "full", "--other-cell", "random r=0.1")
    moved = {share["cause"] for share in one["causes"] if share["better"] or share["worse"]}
    assert moved == {"other tokens or budgets"}
    assert {"method.name", "method.retention"} <= {one["key"] for one in one["settings"]}


@pytest.fixture
def videomme(tmp_path):
    """A run on a release, with real replies, and what is printed for its setting."""
    root = videomme_release(tmp_path / "release")
    benchmark = build_benchmark("videomme", root=str(root), protocol="vlmevalkit")
    options = dict(build_method("tango", retention=0.1).options)
    options.pop("retention")
    entry = replace(cell("tango", 0.1, "videomme", **options), protocol="vlmevalkit")
    entry = replace(entry, layer_shares=None)
    ids = [record.question.id for record in benchmark.records()]
    replies = {name: REPLIES[at % len(REPLIES)] for at, name in enumerate(ids)}
    rows = answer_rows(replies, benchmark, entry.name, tmp_path)
    rows = rows.assign(method=entry.method, retention=entry.retention)
    facts = facts_of(entry, run_id="ours", llm=None, num_frames=32)
    folder = write_run(tmp_path / "ours", rows, facts)
    recipe = {
        "benchmark": {"name": "videomme", "root": str(root)},
        "method": {"name": "tango", "retention": 0.1},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(recipe))
    return folder, root, replies


def test_a_harness_file_uses_the_benchmark_of_the_run(tango, videomme, tmp_path):
    folder, _, _ = videomme
    code, _, err = tango("export", folder, "--format", "vlmevalkit", "--output", tmp_path / "out")
    assert code == 0, err
    (file,) = (tmp_path / "out").rglob("*.tsv")
    table = pd.read_csv(file, sep="\t", keep_default_na=False)
    table.loc[0, "prediction"] = "D" if table.loc[0, "answer"] != "D" else "A"
    table.iloc[:-1].to_csv(file, sep="\t", index=False)
    (one,) = explained(tango, folder, file)
    shares = {share["cause"]: share for share in one["causes"]}
    assert shares["questions that only A has"]["questions"] == 1
    left = shares["what is left: not recorded"]
    assert left["questions"] == 1
    assert left["examples"][0]["reply_b"] in "AD"
    assert shares[RULE]["questions"] == 1, "which VLMEvalKit reads as A"
    assert sum(share["questions"] for share in shares.values()) == 3
    assert "the prompts of A and B" in " ".join(one["not_recorded"])
    (back,) = explained(tango, file, folder)
    assert back["difference_points"] == pytest.approx(-one["difference_points"])


def test_samples_of_lmms_eval_are_explained_in_points_that_add_up(tango, videomme, tmp_path):
    folder, root, replies = videomme
    benchmark = build_benchmark("videomme", root=str(root), protocol="lmms_eval")
    protocol, records = benchmark.protocols["lmms_eval"], benchmark.records()
    asked = {record.question.id: protocol.render(record.question) for record in records}
    ours = pd.read_parquet(folder / "answers")
    ours = ours.assign(prompt_digest=ours["question_id"].map(asked).map(prompt_digest))
    first = write_run(tmp_path / "first", ours, JobFacts.load(folder))
    shutil.copy(folder / "job.yaml", first)
    theirs = tmp_path / "model" / "20260102_030405_samples_videomme.jsonl"
    theirs.parent.mkdir()
    samples = []
    for at, record in enumerate(records[:-1]):  # one question is not asked
        prompt, reply = asked[record.question.id], replies[record.question.id]
        right = "ABCD"[record.question.answer]
        if at == 0:  # under another prompt, which changes the reply to a wrong one
            prompt, reply = replace(prompt, after="Which one?"), "BCDA"[record.question.answer]
        metric = {"question_id": record.question.id, "pred_answer": reply[:1], "answer": right}
        metric["score"] = float(reply[0] == right)
        samples.append(
            {
                **{"doc_id": at, "target": right, "filtered_resps": reply},
                **{"input": prompt.before + prompt.after, "videomme_perception_score": metric},
            }
        )
    theirs.write_text("".join(json.dumps(one) + "\n" for one in samples))
    about = {"lmms_eval_version": "main@abc", "config": {"model_args": "path=x,max_frames_num=16"}}
    theirs.with_name("20260102_030405_results.json").write_text(json.dumps(about))
    (one,) = explained(tango, first, theirs)
    shares = {share["cause"]: share for share in one["causes"]}
    printed = [sample["videomme_perception_score"]["score"] for sample in samples]
    assert one["b"]["score"] == pytest.approx(sum(printed) / len(printed)), "as lmms-eval prints it"
    points = sum(share["points"] for share in shares.values())
    assert points == pytest.approx(100 * (one["b"]["score"] - ours["correct"].mean()))
    assert shares["questions that only A has"]["questions"] == 1
    changed = shares["other prompts + other frames"]
    assert (changed["questions"], changed["worse"]) == (1, 1)
    strict = [row["correct"] for row in ours.to_dict("records")[:-1]]
    strict[0] = False
    ruled = [at for at, (x, y) in enumerate(zip(printed, strict, strict=True)) if x != y]
    assert shares[RULE]["questions"] == len(ruled) > 0
    assert "model.num_frames" in {x["key"] for x in one["settings"]}
    assert "of lmms-eval main@abc" in " ".join(one["notes"])


def test_a_published_score_is_explained_by_the_harness_rule_and_a_remainder(tango, videomme):
    folder, _, _ = videomme
    (one,) = explained(tango, folder, "published")
    rows = pd.read_parquet(folder / "answers")
    assert one["b"]["score"] == pytest.approx(0.585), "printed for Tango at 10 %"
    shares = {share["cause"]: share["points"] for share in one["causes"]}
    strict, harness = rows["correct"].fillna(False).mean(), rows["harness_score"].mean()
    assert harness != strict, "some replies are read in another way by the harness"
    assert shares[RULE] == pytest.approx(100 * (harness - strict))
    assert sum(shares.values()) == pytest.approx(one["difference_points"])
    assert any("2,700" in note for note in one["notes"])
    (back,) = explained(tango, "published", folder)
    assert back["difference_points"] == pytest.approx(-one["difference_points"])
    code, out, _ = tango("explain", folder, "published")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80


def test_user_errors_are_one_line(tango, runs, tmp_path):
    for arguments, said in (
        ((tmp_path, runs[0]), "is not a finished run"),
        (("published", runs[0]), "nothing is printed for"),
        (("published", runs[0], "--cell", "x"), "has 'full'"),
        ((*runs, "--cell", "tngo"), "choose with --cell and --other-cell"),
    ):
        code, _, err = tango("explain", *arguments)
        assert code == 2, arguments
        assert said in err
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
