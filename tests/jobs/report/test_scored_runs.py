"""Headlines that are not accuracy in shards, comparisons, explanations, viewer and analyses."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from merged_runs import assert_alike, report
from scored_answers import (
    answers_of,
    grounding,
    group_scores,
    grouping,
    iou,
    spans,
    write_scored_run,
)

from jobs.analysis.coverage import cell_scores
from jobs.notebook import load_run
from jobs.report.compare import report_runs
from jobs.viewer.command import opened

pytestmark = pytest.mark.usefixtures("blank_figures")

CELLS = ("full", "tango r=0.1")
HEADLINES = {"charades_sta": "miou", "videomme_v2": "group_score"}


@pytest.fixture(scope="module", params=HEADLINES)
def made(request, tmp_path_factory):
    """A benchmark, replies of two cells to it, and the scores by hand."""
    root = tmp_path_factory.mktemp(request.param)
    rng = np.random.default_rng(3)
    if request.param == "charades_sta":
        benchmark = grounding(root, 18)
        replies = {name: spans(rng, 36, noise) for name, noise in zip(CELLS, (1.0, 4.0))}  # noqa: B905
        scores = {name: [iou(reply) for reply in replies[name]] for name in CELLS}
    else:
        rows, benchmark = grouping(root, range(10, 16))
        replies = {
            name: [row["answer"] if rng.random() < chance else "none of them" for row in rows]
            for name, chance in zip(CELLS, (0.9, 0.6))  # noqa: B905
        }
        scores = {name: list(group_scores(rows, replies[name]).values()) for name in CELLS}
    return SimpleNamespace(
        name=request.param, benchmark=benchmark, replies=replies, scores=scores, root=root
    )


def run_of(made, folder, shard="0/1", cells=CELLS):
    replies = {name: made.replies[name] for name in cells}
    return write_scored_run(folder, made.benchmark, replies, shard)


def headlines(summary):
    return {one["cell"]: one["scores"][one["metric"]]["value"] for one in summary["cells"]}


@pytest.mark.parametrize("shards", [("0/3", "1/3", "2/3"), ("1/2", "2/4", "0/4")])
def test_all_shards_together_are_the_whole_run(made, shards, tmp_path):
    parts = [run_of(made, tmp_path / shard.replace("/", "of"), shard) for shard in shards]
    merged, words, table = report(parts, tmp_path / "merged")
    whole = run_of(made, tmp_path / "whole")
    report_runs([whole])
    assert_alike(merged, json.loads((whole / "summary.json").read_text()))
    assert "Missing shards" not in words
    assert "incomplete" not in words, "a shard holds whole groups"
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert rows == (whole / "paper_table.md").read_text().strip().splitlines()[: len(rows)]
    expected = {name: np.mean(made.scores[name]) for name in CELLS}
    assert headlines(merged) == pytest.approx(expected, abs=2e-3)
    full, tango = merged["cells"]
    assert {full["metric"], tango["metric"]} == {HEADLINES[made.name]}
    paired = tango["versus_full"]
    assert paired["difference"] == pytest.approx(expected[CELLS[1]] - expected[CELLS[0]], abs=4e-3)
    assert paired["num_questions"] == len(made.scores["full"])
    assert paired["p_value"] < 0.05


def test_a_run_opens_in_a_notebook_and_in_analyses(made, tmp_path):
    folder = run_of(made, tmp_path / "run")
    run = load_run(folder)
    frame = run.cells.set_index("cell")
    assert set(frame["metric"]) == {HEADLINES[made.name]}
    clips = {made.name: {item.video_id for item in made.benchmark.items()}}
    found = cell_scores(folder, clips)
    answers = answers_of(made.benchmark, made.replies)
    for name in CELLS:
        own = answers[answers["cell"] == name]
        assert frame.loc[name, "score"] == pytest.approx(np.mean(made.scores[name]), abs=2e-3)
        assert frame.loc[name, "score_low"] < frame.loc[name, "score"]
        column = "score" if made.name == "charades_sta" else "correct"
        assert found.by_cell[name] == pytest.approx(own[column].astype(float).mean())
    assert found.title == ("mIoU" if made.name == "charades_sta" else "accuracy")
    part = {made.name: set(list(clips[made.name])[:4])}
    assert cell_scores(folder, part).by_cell != found.by_cell


def test_the_viewer_counts_right_ones_and_shows_spans_and_scores(made, tmp_path):
    folder = run_of(made, tmp_path / "run")
    answers = answers_of(made.benchmark, made.replies)
    right = answers[answers["correct"].fillna(False).astype(bool)]
    with opened([folder]) as pages:
        for number, name in enumerate(CELLS):
            found = pages.contents()["columns"][number]
            assert found["right"] == (right["cell"] == name).sum()
        page = pages.clip(0)
    for question in page["questions"]:
        of_question = answers[answers["question_id"] == question["id"]].set_index("cell")
        for number, name in enumerate(CELLS):
            said, row = question["answers"][str(number)], of_question.loc[name]
            assert said.get("text", "") == row["text"]
            if made.name == "charades_sta":
                assert question["span"] == "5 to 15 s"
                assert said["score"] == pytest.approx(row["score"], abs=1e-3)
            else:
                assert question["span"] is None
                assert "score" not in said
