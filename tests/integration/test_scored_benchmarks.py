"""Real runs of benchmarks whose headline is not accuracy, from a release to a report."""

from __future__ import annotations

import csv
import json

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
