"""Real runs of benchmarks whose headline is not accuracy, from a release to a report."""

from __future__ import annotations

import csv
import json
import sys

import pytest
import yaml
from numbered_videos import write_clip
from scored_releases import (
    CHARADES_VIDEOS,
    VIDEOMME_V2_ROWS,
    charades_text,
    videomme_v2_release,
)

from jobs.cli.main import main
from jobs.results.summary import read_answers
from tango_core.metrics.grouped import score_of_group, structure_of

pytestmark = pytest.mark.slow


@pytest.fixture
def tango(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tango", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        assert not stop.value.code, err
        return out

    return call


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


def test_both_benchmarks_in_one_sweep(tango, tmp_path):
    for root, write, videos in (
        ("v2", videomme_v2_release, sorted({row["video_id"] for row in VIDEOMME_V2_ROWS})),
        ("charades", charades_text, CHARADES_VIDEOS),
    ):
        write(tmp_path / root)
        folder = tmp_path / root / ("video" if root == "v2" else "Charades_v1_480")
        folder.mkdir()
        for video in videos:
            write_clip(folder / f"{video}.mp4", 24)
    assert "complete" in tango("data", "check", "videomme_v2", "v2")
    assert "complete" in tango("data", "check", "charades_sta", "charades")
    write_recipe(
        tmp_path,
        {"name": "videomme_v2", "root": "v2"},
        {"name": "charades_sta", "root": "charades", "protocol": "lmms_eval"},
    )
    shown = tango("sweep", "recipe.yaml")
    assert "score %" in shown
    assert "videomme_v2 (group score)" in shown
    assert "charades_sta (mIoU)" in shown
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
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
    assert (run / "plots" / "score_vs_retention.png").stat().st_size > 1000
    tango("report", run)
    lines = list(csv.DictReader((run / "scores.csv").open()))
    assert {line["metric"] for line in lines} == {
        "group_score", "accuracy", "miou", "r1_iou_0.3", "r1_iou_0.5", "r1_iou_0.7",
    }  # fmt: skip
    paper = (run / "paper_table.md").read_text()
    assert "Video-MME-v2 group score" in paper
    assert "Avg. and Perf. % are left out" in paper


@pytest.mark.parametrize("harness", ["lmms_eval", "vlmevalkit"])
def test_answers_go_out_and_come_back(tango, tmp_path, harness):
    names = {"videomme_v2": videomme_v2_release, "charades_sta": charades_text}
    names = names if harness == "lmms_eval" else {"videomme_v2": videomme_v2_release}
    for name, write in names.items():
        write(tmp_path / name)
    write_recipe(
        tmp_path,
        *({"name": name, "root": name, "protocol": harness} for name in names),
    )
    folders = {"videomme_v2": "video", "charades_sta": "Charades_v1_480"}
    ids = {"videomme_v2": ("001", "002", "700"), "charades_sta": CHARADES_VIDEOS}
    for name in names:
        (tmp_path / name / folders[name]).mkdir()
        for video in ids[name]:
            write_clip(tmp_path / name / folders[name] / f"{video}.mp4", 24)
    tango("sweep", "recipe.yaml")
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    sent = read_answers(run)
    files = tango("export", run, "--format", harness).splitlines()
    columns = ["question_id", "status", "text", "correct", "score", "harness_score"]
    for name, file in zip(names, (one for one in files if "full" in one), strict=True):
        out = tango("import", file, "--format", harness, "--benchmark", name, "--root", name)
        back = read_answers(tmp_path / out.strip().splitlines()[-1].removeprefix("run: "))
        own = sent[(sent["benchmark"] == name) & (sent["cell"] == "full")]
        theirs, ours = (
            rows.set_index("question_id").sort_index()[columns[1:]].astype(object)
            for rows in (back, own)
        )
        assert theirs.fillna("-").equals(ours.fillna("-"))
