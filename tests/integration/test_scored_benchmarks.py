"""Real runs of benchmarks whose headline is not accuracy, from a release to a report."""

from __future__ import annotations

import csv
import json

import pandas as pd
import pytest
import yaml
from numbered_videos import write_clip
from releases import (
    CHARADES_VIDEOS,
    VIDEOMME_V2_ROWS,
    charades_text,
    videomme_v2_release,
)
from summaries import read_answers

from tango_core.metrics.metric import score_of_group, structure_of

COMPARED = ["video_id", "status", "text", "correct", "score"]
pytestmark = pytest.mark.slow


def write_recipe(folder, *benchmarks):
    """A sweep of two methods over benchmarks, with the embedded model."""
    recipe = {
        "benchmarks": list(benchmarks),
        "model": {"name": "tiny", "num_frames": 4},
        "methods": [{"name": "full"}, {"name": "tango", "retention": 0.3}],
        "executor": "local",
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))


def group_scores(rows):
    """Mean score of the groups, from the rows of one cell and the release."""
    right = dict(zip(rows["question_id"], rows["correct"], strict=True))
    scores = []
    for video in dict.fromkeys(row["video_id"] for row in VIDEOMME_V2_ROWS):
        group = sorted(
            (row for row in VIDEOMME_V2_ROWS if row["video_id"] == video),
            key=lambda row: row["question_id"],
        )
        kind, structure = group[0]["group_type"], structure_of(group[0]["group_structure"])
        scores.append(score_of_group(kind, structure, [right[row["question_id"]] for row in group]))
    return sum(scores) / len(scores)


def test_both_benchmarks_in_one_sweep(output_of, tmp_path):
    for root, write, videos in (
        ("v2", videomme_v2_release, sorted({row["video_id"] for row in VIDEOMME_V2_ROWS})),
        ("charades", charades_text, CHARADES_VIDEOS),
    ):
        write(tmp_path / root)
        folder = tmp_path / root / ("video" if root == "v2" else "Charades_v1_480")
        folder.mkdir()
        for video in videos:
            write_clip(folder / f"{video}.mp4", 24)
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
            assert cell["scores"]["group_score"]["value"] == pytest.approx(group_scores(own))
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
    for harness, names in (
        ("lmms_eval", ("videomme_v2", "charades_sta")),
        ("vlmevalkit", ("videomme_v2",)),
    ):
        files = [
            path
            for path in output_of("export", run, "--format", harness).splitlines()
            if "-full" in path
        ]
        assert len(files) == len(names)
        for name, file in zip(names, files, strict=True):
            root = "v2" if name == "videomme_v2" else "charades"
            about = ["--format", harness, "--benchmark", name, "--root", root]
            out = output_of("import", file, *about)
            back = read_answers(tmp_path / out.strip().splitlines()[-1].removeprefix("run: "))
            own = answers[(answers["benchmark"] == name) & (answers["cell"] == "full")]
            theirs, ours = (
                rows.set_index("question_id").sort_index()[COMPARED] for rows in (back, own)
            )
            pd.testing.assert_frame_equal(theirs, ours)
    paper = (run / "paper_table.md").read_text()
    assert "Video-MME-v2 group score" in paper
    assert "Avg. and Perf. % are left out" in paper
