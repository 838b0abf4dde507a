"""Benchmarks of lmms-eval and subtitles of Video-MME, from a release to a summary."""

from __future__ import annotations

import json

import pytest
from jobs_for_tests import answers_of, run
from numbered_videos import write_clip
from releases import (
    LAYOUTS,
    RECORDED,
    VIDEOMME_ROWS,
    VIDEOMME_V2_ROWS,
    load,
    lvbench_authors,
    lvbench_release,
    tempcompass_release,
    videomme_release,
    videomme_v2_release,
)
from summaries import write_summary

from jobs.config.recipe import parse_job

pytestmark = pytest.mark.slow

METHODS = [{"name": "full"}, {"name": "tango", "retention": 0.25}]
TAG = '<font color="white" size=".72c">{}</font>'
SRT = f"1\n00:00:00,500 --> 00:00:01,900\n{TAG.format('Hello you there again')}\n\n"


@pytest.fixture
def measure(tmp_path):
    """Write the videos of a release, ask all its questions, and give answers and summary."""

    def start(name, root, **options):
        for item in load(name, root).items():
            path = item.path
            if not (root / path).exists():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                write_clip(root / path, 48)
        recipe = {
            "benchmark": {"name": name, "root": str(root), **options},
            "model": {"name": "tiny", "num_frames": 4},
            "methods": METHODS,
            "executor": "local",
        }
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


@pytest.mark.parametrize("write", [lvbench_authors, lvbench_release])
def test_lvbench(measure, write, tmp_path):
    _, answers, summary = measure("lvbench", write(tmp_path / "root"), protocol="lmms_eval")
    assert len(answers) == 2 * 3
    assert answers[["correct", "harness_score"]].notna().all(axis=None)
    for cell in summary["cells"]:
        types = cell["accuracy_by"]["type"]
        assert cell["num_scored"] == 3
        assert {kind: value["n"] for kind, value in types.items()} == {
            "key information retrieval": 1,
            "entity recognition": 1,
            "event understanding": 1,
            "reasoning": 1,
        }, "a question of two types counts in both"


def test_subtitles_of_video_mme_v2(measure, tmp_path):
    root = videomme_v2_release(tmp_path / "root")
    (root / "subtitle").mkdir()
    words = [{"text": word, "start_time": 0.0, "end_time": 1.0} for word in ("hello", "there")]
    (root / "subtitle" / "001.jsonl").write_text("\n".join(map(json.dumps, words)))
    _, plain, _ = measure("videomme_v2", root, protocol="lmms_eval")
    result, shown, _ = measure("videomme_v2", root, protocol="lmms_eval", subtitles=True)
    assert (result.num_encoded, result.num_computed) == (0, 0)
    assert len(shown) == 2 * len(VIDEOMME_V2_ROWS)
    changed = shown["prompt_digest"] != plain["prompt_digest"]
    assert set(shown[changed]["video_id"]) == {"001"}
    assert changed.sum() == 2 * 4, "a video without words is asked as before"
