"""Public benchmarks from a release to a summary, a report and the files of harnesses."""

from __future__ import annotations

import csv
import json

import pandas as pd
import pytest
import yaml
from jobs_for_tests import answers_of, run
from numbered_videos import write_clip
from releases import (
    LAYOUTS,
    RECORDED,
    VIDEOMME_ROWS,
    charades_text,
    load,
    lvbench_release,
    tempcompass_release,
    videomme_release,
    videomme_v2_release,
)
from summaries import read_answers, write_summary

from jobs.config.recipe import parse_job

# A sweep of two methods with the embedded model.
RECIPE = {
    "model": {"name": "tiny", "num_frames": 4},
    "methods": [{"name": "full"}, {"name": "tango", "retention": 0.3}],
    "executor": "local",
}


def write_recipe(folder, *benchmarks):
    content = {"benchmarks": list(benchmarks), **RECIPE}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))


def write_videos(name, root):
    """The videos that a release names, where they are not there."""
    for item in load(name, root).items():
        if not (path := root / item.path).exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_clip(path, 48)


@pytest.mark.slow
def test_both_benchmarks_in_one_sweep(output_of, tmp_path):
    write_videos("videomme_v2", videomme_v2_release(tmp_path / "v2"))
    write_videos("charades_sta", charades_text(tmp_path / "charades"))
    assert "complete" in output_of("data", "check", "videomme_v2", "v2")
    assert "complete" in output_of("data", "check", "charades_sta", "charades")
    write_recipe(
        tmp_path,
        {"name": "videomme_v2", "root": "v2"},
        {"name": "charades_sta", "root": "charades", "protocol": "lmms_eval"},
    )
    shown = output_of("sweep", "recipe.yaml")
    assert "score %" in shown
    assert "videomme_v2 (group score)" in shown
    assert "charades_sta (mIoU)" in shown
    (run,) = (tmp_path / "runs").glob("*-tiny-*")
    answers = read_answers(run)
    cells = json.loads((run / "summary.json").read_text())["cells"]
    assert [(cell["benchmark"], cell["cell"]) for cell in cells] == [
        (name, cell) for name in ("videomme_v2", "charades_sta") for cell in ("full", "tango r=0.3")
    ]
    for cell in cells:
        own = answers[
            (answers["benchmark"] == cell["benchmark"]) & (answers["cell"] == cell["cell"])
        ]
        assert len(own) == (12 if cell["benchmark"] == "videomme_v2" else 5)
        if cell["benchmark"] == "videomme_v2":
            assert cell["scores"]["group_score"]["n"] == 3
            assert cell["accuracy"] == pytest.approx(own["correct"].astype(float).mean())
        else:
            assert cell["accuracy"] is None
            assert cell["scores"]["miou"]["value"] == pytest.approx(own["score"].mean())
            assert own["answer_text"].iloc[0] == "24.3 to 30.4 s"
    report = (run / "report.html").read_text()
    assert "R@1 at IoU 0.5" in report
    assert "group score" in report
    assert (run / "plots" / "score_vs_cost.svg").stat().st_size > 1000
    output_of("report", run)
    lines = list(csv.DictReader((run / "scores.csv").open()))
    assert {line["metric"] for line in lines} == {
        "group_score", "accuracy", "miou", "r1_iou_0.3", "r1_iou_0.5", "r1_iou_0.7",
    }  # fmt: skip
    paper = (run / "paper_table.md").read_text()
    assert "Video-MME-v2 group score" in paper
    assert "Avg. and Perf. % are left out" in paper


TAG = '<font color="white" size=".72c">{}</font>'
SRT = f"1\n00:00:00,500 --> 00:00:01,900\n{TAG.format('Hello you there again')}\n\n"


@pytest.fixture
def measure(tmp_path):
    """Write the videos of a release, ask all its questions, and give answers and summary."""

    def start(name, root, **options):
        write_videos(name, root)
        recipe = {"benchmark": {"name": name, "root": str(root), **options}, **RECIPE}
        result, run_dir = run(parse_job(recipe, "test"), tmp_path / "out")
        write_summary(run_dir)
        return result, answers_of(run_dir), json.loads((run_dir / "summary.json").read_text())

    return start


GROUPS = {
    "nextqa": {"kind", "type"},
    "nextqa_oe": {"kind", "type"},
    "perceptiontest": {"area", "reasoning", "tag"},
    "tomato": {"reason_type", "demonstration_type"},
    "motionbench": {"type", "video_type"},
    "tvbench": {"task"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_benchmarks_of_lmms_eval_have_scores_and_sub_scores(measure, name, tmp_path):
    root, count = LAYOUTS[name][0](tmp_path / "root"), len(RECORDED[name]["prompts"])
    _, answers, summary = measure(name, root, protocol="lmms_eval")
    assert len(answers) == 2 * count
    assert answers["correct"].notna().all()
    assert answers["harness_score"].notna().all() == (name != "nextqa_oe")
    for cell in summary["cells"]:
        assert cell["num_scored"] == count
        assert set(cell["accuracy_by"]) == GROUPS.get(name, set())


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["vlmevalkit", "lmms_eval"])
def test_subtitles_change_prompts_but_not_tokens(measure, protocol, tmp_path):
    root = videomme_release(tmp_path / "root")
    (root / "subtitle").mkdir()
    (root / "subtitle" / "aAaAaAaAaA0.srt").write_text(SRT)
    first, plain, _ = measure("videomme", root, protocol=protocol)
    second, shown, summary = measure("videomme", root, protocol=protocol, subtitles=True)
    assert (first.num_encoded, second.num_encoded, second.num_computed) == (2, 0, 0)
    assert len(plain) == len(shown) == 2 * len(VIDEOMME_ROWS)
    assert (shown["prompt_digest"] != plain["prompt_digest"]).all()
    same = ["video_id", "question_id", "cell", "tokens_kept", "tokens_total", "frames_digest"]
    assert shown[same].equals(plain[same])
    assert (shown["prompt_tokens"] > plain["prompt_tokens"]).all()
    longer = (shown["prompt_tokens"] - plain["prompt_tokens"]).groupby(shown["video_id"]).mean()
    assert longer["aAaAaAaAaA0"] != longer["-b_B-b_B-b1"]
    assert {cell["protocol"] for cell in summary["cells"]} == {f"{protocol}+subtitles"}
    assert all(cell["harness_accuracy"] is not None for cell in summary["cells"])


@pytest.mark.slow
def test_tempcompass_scores_all_forms_except_captions(measure, tmp_path):
    _, answers, summary = measure("tempcompass", tempcompass_release(tmp_path / "root"))
    assert len(answers) == 2 * 9
    groups = answers["groups"].map(json.loads)
    captions = groups.map(lambda own: own["task"]) == "captioning"
    assert set(answers[captions]["status"]) == {"ok"}
    assert answers[captions][["correct", "harness_score"]].isna().all(axis=None)
    assert (answers[captions]["text"].str.len() > 0).all()
    assert answers[~captions][["correct", "harness_score"]].notna().all(axis=None)
    for cell in summary["cells"]:
        assert (cell["num_questions"], cell["num_scored"]) == (9, 8)
        assert set(cell["accuracy_by"]["task"]) == {"multi-choice", "caption_matching", "yes_no"}
        by_form = cell["accuracy_cross"]["dimension"]["action"]["task"]
        counts = {form: value["n"] for form, value in by_form.items()}
        assert counts == {"multi-choice": 1, "caption_matching": 1, "yes_no": 2}


@pytest.mark.slow
def test_a_question_of_two_types_counts_in_both(measure, tmp_path):
    root = lvbench_release(tmp_path / "root")
    _, _, summary = measure("lvbench", root, protocol="lmms_eval")
    types = ("key information retrieval", "entity recognition", "event understanding", "reasoning")
    for cell in summary["cells"]:
        assert cell["num_scored"] == 3
        counts = {kind: value["n"] for kind, value in cell["accuracy_by"]["type"].items()}
        assert counts == dict.fromkeys(types, 1)


COMPARED = ["video_id", "status", "text", "choice", "correct", "harness_score"]


def test_an_exported_run_is_imported_as_the_reference_of_another(output_of, tmp_path):
    write_videos("videomme", videomme_release(tmp_path / "release"))
    write_recipe(tmp_path, {"name": "videomme", "root": "release"})
    assert "complete" in output_of("data", "check", "videomme", "release")
    # Only `log-run` below needs MLflow; nobody listens here.
    output_of("sweep", "recipe.yaml", "--tracking-uri", "http://127.0.0.1:9")
    (run,) = (tmp_path / "runs").glob("*-videomme-tiny-*")
    sent = read_answers(run)
    sent = sent[sent["cell"] == "full"]
    assert set(sent["status"]) <= {"ok", "unparsed"}
    about = ["--benchmark", "videomme", "--root", "release", "--protocol", "vlmevalkit"]
    about += ["--model", "tiny", "--method", "full"]
    imported = []
    for harness in ("vlmevalkit", "lmms_eval"):
        file = output_of("export", run, "--format", harness).splitlines()[0]
        out = output_of("import", file, "--format", harness, *about)
        imported.append(tmp_path / out.strip().splitlines()[-1].removeprefix("run: "))
        pair = [
            rows.set_index("question_id").sort_index()[COMPARED]
            for rows in (sent, read_answers(imported[-1]))
        ]
        pd.testing.assert_frame_equal(*pair)
    assert "logged to" in output_of("log-run", imported[0])
    output_of("report", imported[0], run, "--output", "both", "--published")
    theirs, ours, pruned = json.loads((tmp_path / "both" / "summary.json").read_text())["cells"]
    assert theirs["accuracy"] == ours["accuracy"]
    assert theirs["harness_accuracy"] == ours["harness_accuracy"] is not None
    assert pruned["versus_full"]["num_questions"] == 4
    table = (tmp_path / "both" / "paper_table.md").read_text()
    assert "Video-MME short | Video-MME medium | Video-MME long | Video-MME overall" in table
