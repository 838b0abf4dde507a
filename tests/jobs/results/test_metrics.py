"""Scores that are not accuracy, from replies to tables and MLflow, against counts by hand."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
from fake_answers import cell, facts_of
from scored_answers import answers_of, grounding, group_scores, grouping, iou, spans
from summaries import summarize

from jobs.report.compare import report_runs
from jobs.report.tables.breakdowns import scores_csv
from jobs.report.tables.cells import cells_csv, render_table
from jobs.report.tables.paper import paper_table
from jobs.results.cell_summary import RunSummary
from jobs.tracking.live import LiveScores
from pipeline.rows import AnswerRow
from tango_core.metrics import clustered_accuracy

CELLS = ("full", "tango r=0.1")


@pytest.fixture
def grounded(tmp_path):
    """Replies of two cells, their answers, and what the run says about itself."""
    rng = np.random.default_rng(0)
    replies = {"full": spans(rng, 60, 1.0), "tango r=0.1": spans(rng, 60, 4.0)}
    answers = answers_of(grounding(tmp_path / "release"), replies)
    facts = facts_of(cell("full", 1.0, "charades_sta"), cell("tango", 0.1, "charades_sta"))
    return replies, answers, facts


@pytest.fixture
def grouped(tmp_path):
    """Video-MME-v2: 40 copies of the release's groups under two cells, and their patterns."""
    rows, benchmark = grouping(tmp_path / "v2")
    rng = np.random.default_rng(1)
    replies = {
        name: [row["answer"] if rng.random() < chance else "none of them" for row in rows]
        for name, chance in (("full", 0.9), ("tango r=0.1", 0.6))
    }
    facts = facts_of(cell("full", 1.0, "videomme_v2"), cell("tango", 0.1, "videomme_v2"))
    return rows, replies, answers_of(benchmark, replies), facts


class TestGrounding:
    def test_all_metrics_are_those_of_a_count_by_hand(self, grounded):
        replies, answers, facts = grounded
        for found in summarize(answers, facts).cells:
            ious = np.array([iou(reply) for reply in replies[found.name]])
            assert found.metric == "miou"
            assert found.headline.value == pytest.approx(ious.mean(), abs=2e-3)
            for threshold in (0.3, 0.5, 0.7):
                expected = clustered_accuracy(ious >= threshold, np.arange(60) // 2)
                assert found.scores[f"r1_iou_{threshold}"] == expected
            assert found.accuracy is None
            assert found.counts.num_unparsed == found.counts.num_failed == 1

    def test_differences_are_paired(self, grounded):
        replies, answers, facts = grounded
        _, tango = summarize(answers, facts).cells
        ours, theirs = (np.array([iou(r) for r in replies[n]]) for n in reversed(CELLS))
        paired = tango.versus_full.paired
        assert paired.difference == pytest.approx((ours - theirs).mean(), abs=2e-3)
        assert paired.low < paired.difference < paired.high < 0
        assert paired.p_value < 0.01
        also = tango.versus_full.also["r1_iou_0.7"]
        assert also.num_gained - also.num_lost == (ours >= 0.7).sum() - (theirs >= 0.7).sum()

    def test_a_summary_comes_back_from_its_file(self, grounded):
        _, answers, facts = grounded
        data = json.loads(json.dumps(summarize(answers, facts).to_json(), allow_nan=False))
        assert data["cells"][0]["accuracy"] is None
        assert "harness_accuracy" not in data["cells"][0]
        found = RunSummary.from_json(data).cells
        assert [one.headline.value for one in found] == [
            one["scores"]["miou"]["value"] for one in data["cells"]
        ]
        assert json.loads(json.dumps(RunSummary.from_json(data).to_json())) == data


class TestGroups:
    def test_scores_and_break_downs_are_those_of_a_count_by_hand(self, grouped):
        rows, replies, answers, facts = grouped
        for found in summarize(answers, facts).cells:
            scores = group_scores(rows, replies[found.name])
            assert found.headline.value == pytest.approx(np.mean(list(scores.values())))
            assert found.headline.num_questions == found.headline.num_clusters == 120
            logic = [scores[row["video_id"]] for row in rows if row["group_type"] == "logic"]
            by = found.scores_by["group_score"]
            assert by["group_type"]["logic"].value == pytest.approx(np.mean(logic))
            assert by["group_type"]["logic"].num_questions == 80
            assert "group_position" not in by
            right = [r == row["answer"] for r, row in zip(replies[found.name], rows, strict=True)]
            assert found.accuracy.value == pytest.approx(np.mean(right))
            assert found.scores_by["accuracy"]["group_type"]["logic"].num_questions == 320
            assert found.harness == pytest.approx(found.headline.value), "equal readings here"

    def test_differences_are_of_groups(self, grouped):
        rows, replies, answers, facts = grouped
        _, tango = summarize(answers, facts).cells
        ours, theirs = (
            np.array(list(group_scores(rows, replies[n]).values())) for n in CELLS[::-1]
        )
        paired = tango.versus_full.paired
        assert paired.difference == pytest.approx((ours - theirs).mean())
        assert (paired.num_questions, paired.num_gained) == (120, (ours > theirs).sum())
        assert set(tango.versus_full.also) == {"accuracy"}

    def test_incomplete_groups_are_left_out(self, grouped):
        rows, replies, answers, facts = grouped
        lost = answers[~answers["question_id"].isin(["10001-2", "11002-4"])]
        cells = summarize(lost, facts).cells
        scores = group_scores(rows, replies["full"])
        kept = [score for video, score in scores.items() if video not in ("10001", "11002")]
        assert cells[0].headline.value == pytest.approx(np.mean(kept))
        assert cells[0].headline.num_questions == 118

    def test_live_numbers_are_those_of_the_end(self, grouped):
        _, _, answers, facts = grouped
        live = LiveScores()
        for _, rows in answers.groupby("video_id"):
            live.add([AnswerRow(**row) for row in rows.to_dict("records")])
        metrics, cells = live.metrics(), summarize(answers, facts).cells
        together = sum(found.headline.value for found in cells) / len(cells)
        assert metrics["group_score"] == pytest.approx(together)
        assert metrics["live/group_score_low"] < metrics["group_score"]
        assert not [name for name in metrics if "accuracy" in name]


class TestTogether:
    def test_a_table_of_two_metrics_names_both(self, grounded, grouped):
        _, spans_, facts = grounded
        *_, groups, other = grouped
        both = facts_of(*facts.cells, *other.cells)
        cells = summarize(pd.concat([spans_, groups]), both).cells
        text = render_table(cells)
        assert "score %" in text
        assert "charades_sta (mIoU)" in text
        assert "videomme_v2 (group score)" in text
        paper = paper_table(cells)
        assert "Charades-STA mIoU" in paper.markdown()
        assert "mIoU of Charades-STA" in paper.markdown()
        assert all(row.values["", "Avg."] is None for row in paper.rows)
        lines = list(csv.DictReader(io.StringIO(scores_csv(cells))))
        assert len(lines) == 2 * 4 + 2 * 2
        table = list(csv.DictReader(io.StringIO(cells_csv(cells))))
        assert [row["metric"] for row in table] == ["miou"] * 2 + ["group_score"] * 2
        assert [row["accuracy"] == "" for row in table] == [True, True, False, False]


def test_runs_are_compared_on_common_questions_and_groups(tmp_path, grouped):
    _, _, answers, facts = grouped
    runs = []
    for number, name in enumerate(CELLS):
        folder = tmp_path / f"run{number}"
        own = answers[answers["cell"] == name]
        own = own[own["question_id"] != ("10001-1", "49700-3")[number]]
        (folder / "answers").mkdir(parents=True)
        own.to_parquet(folder / "answers" / "part-00000.parquet")
        facts_of(facts.cells[number], run_id=folder.name).save(folder)
        runs.append(folder)
    report_runs(runs, tmp_path / "out")
    cells = json.loads((tmp_path / "out" / "summary.json").read_text())["cells"]
    assert [entry["scores"]["group_score"]["n"] for entry in cells] == [118, 118]
    assert cells[1]["versus_full"]["num_questions"] == 118
    assert ">group score %</th>" in (tmp_path / "out" / "report.html").read_text()
