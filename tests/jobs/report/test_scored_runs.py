"""Headlines that are not accuracy in shards of one job."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from merged_runs import assert_alike, report
from scored_answers import grounding, group_scores, grouping, iou, spans, write_scored_run

from jobs.report.compare import report_runs

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
