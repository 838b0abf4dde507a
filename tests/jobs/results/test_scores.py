"""Scores beside the headline: as harnesses count, and by two groups at once."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from fake_answers import cell, facts_of, fake_answers, summary_json
from scipy import stats

from jobs.report.page import render_html
from jobs.report.tables.breakdowns import breakdowns, breakdowns_csv, breakdowns_markdown
from jobs.report.tables.cells import cells_csv, cells_table, render_table
from jobs.results.summary import summarize
from tango_core.metrics import sign_flip_p_value


def run_of(benchmark, protocol, **options):
    """Answers and facts of one cell with harness scores that differ from the strict outcome."""
    facts = facts_of(replace(cell("tango", 0.1, benchmark), protocol=protocol))
    answers = fake_answers(facts, **options)
    score = answers["correct"].astype("Float64").fillna(0)
    score[::7] = 1.0  # right for the harness, whatever we read
    score[::11] = None  # left out of its mean
    score[answers["status"] == "decode_failed"] = -1.0
    return answers.assign(harness_score=score.astype("float64")), facts


def groups_of(answers, name):
    return answers["groups"].map(lambda text: json.loads(text)[name])


class TestHarness:
    @pytest.mark.parametrize("protocol", ["vlmevalkit", "lmms_eval"])
    def test_mean_leaves_out_what_the_harness_leaves_out(self, protocol):
        answers, facts = run_of("mvbench", protocol, failed_clips=(3,))
        summary = summary_json(answers, facts)
        assert summary["harness_accuracy"] == pytest.approx(np.nanmean(answers["harness_score"]))
        assert summary["harness_accuracy"] != summary["accuracy"]
        assert summary["protocol"] == protocol

    def test_mlvu_is_a_mean_over_tasks_in_lmms_eval_only(self):
        answers, facts = run_of("mlvu", "lmms_eval", failed_clips=(0, 4))
        by_task = answers["harness_score"].groupby(groups_of(answers, "task")).mean()
        micro = summary_json(*run_of("mlvu", "vlmevalkit", failed_clips=(0, 4)))
        macro = summary_json(answers, facts)
        assert macro["harness_accuracy"] == pytest.approx(by_task.mean())
        assert micro["harness_accuracy"] == pytest.approx(answers["harness_score"].mean())
        assert macro["harness_accuracy"] != micro["harness_accuracy"]
        assert macro["accuracy"] == micro["accuracy"], "the headline knows no protocol"

    def test_questions_without_a_right_option_count_as_the_harness_counts_them(self):
        answers, facts = run_of("mlvu", "vlmevalkit")
        odd = answers.index[:9]
        answers.loc[odd, ["answer", "correct"]] = pd.NA
        answers.loc[odd, "harness_score"] = 0.0
        summary = summary_json(answers, facts)
        assert summary["num_scored"] == len(answers) - 9
        assert summary["harness_accuracy"] == pytest.approx(answers["harness_score"].mean())

    def test_m_avg_over_tasks_stands_beside_the_accuracy(self):
        answers, facts = run_of("mlvu", "vlmevalkit")
        strict = answers["correct"].astype(float).groupby(groups_of(answers, "task")).mean()
        assert summary_json(answers, facts)["accuracy_macro"] == pytest.approx(strict.mean())
        assert summary_json(*run_of("mvbench", "vlmevalkit"))["accuracy_macro"] is None

    def test_m_avg_is_the_last_column_of_the_break_down_by_task(self):
        answers, facts = run_of("mlvu", "vlmevalkit")
        (entry,) = summarize(answers, facts).cells
        by_task = entry.headline_by["task"]
        (table,) = [one for one in breakdowns([entry]) if one.name == "task"]
        assert [value for value, _ in table.columns] == sorted(by_task)
        assert (table.mean, table.mean_count) == ("mean (M-Avg)", entry.counts.num_scored)
        mean = np.mean([task.value for task in by_task.values()])
        assert f"{100 * mean:.1f} |\n" in f"{breakdowns_markdown([entry])}\n"
        assert "mean (M-Avg) (120) |\n" in breakdowns_markdown([entry])
        lines = list(csv.DictReader(io.StringIO(breakdowns_csv([entry]))))
        (line,) = [line for line in lines if line["value"] == "mean (M-Avg)"]
        assert (line["group"], float(line["accuracy"])) == ("task", pytest.approx(mean))
        assert line["accuracy_low"] == line["inner_group"] == ""

    def test_only_mlvu_is_averaged_over_tasks(self):
        (entry,) = summarize(*run_of("mvbench", "vlmevalkit")).cells
        assert "M-Avg" not in breakdowns_markdown([entry])
        assert "M-Avg" not in breakdowns_csv([entry])

    def test_runs_without_scores_have_no_such_accuracy_and_no_column(self):
        facts = facts_of(cell("tango", 0.1))
        cells = summarize(fake_answers(facts), facts).cells
        assert cells[0].harness is None
        assert "harness" not in cells_table(cells).markdown()

    def test_is_shown_in_every_table(self):
        answers, facts = run_of("mlvu", "vlmevalkit")
        summary = summarize(answers, facts)
        (entry,) = summary.cells
        shown = f"{100 * entry.harness:.1f}"
        for text in (render_table(summary.cells), cells_table(summary.cells).markdown()):
            assert "harness %" in text
            assert shown in text
        assert str(entry.harness) in cells_csv(summary.cells)
        page = render_html(summary, facts, jobs={})
        assert f"<td>{shown}</td>" in page
        assert f"<td>{100 * entry.macro:.1f}</td>" in page


class TestCrossTables:
    @pytest.fixture
    def videomme(self):
        facts = facts_of(cell("full", 1.0, "videomme"))
        answers = fake_answers(facts, num_clips=60)
        domains = np.array(["Knowledge", "Sports"])[np.arange(len(answers)) // 3 % 2]
        groups = [
            {**json.loads(text), "domain": domain, "task_type": json.loads(text)["task"]}
            for text, domain in zip(answers["groups"], domains, strict=True)
        ]
        return answers.assign(groups=[json.dumps(group) for group in groups]), facts, groups

    def test_every_length_is_broken_down_by_domain_and_task(self, videomme):
        answers, facts, groups = videomme
        table = summary_json(answers, facts)["accuracy_cross"]["duration"]
        frame = pd.DataFrame(groups).assign(right=answers["correct"].astype(float))
        assert set(table) == {"short", "medium", "long"}
        for inner in ("domain", "task_type"):
            expected = frame.groupby(["duration", inner])["right"].agg(["mean", "size"])
            for (length, value), mean, size in expected.itertuples():
                entry = table[length][inner][value]
                assert (entry["accuracy"], entry["n"]) == (pytest.approx(mean), size)
                assert entry["ci95"][0] <= entry["accuracy"] <= entry["ci95"][1]

    def test_intervals_regard_questions_of_a_clip_as_dependent(self, videomme):
        """Wider than Wilson's interval for as many independent questions."""
        answers, facts, _ = videomme
        answers = answers.assign(correct=(answers["video_id"].str[-1].astype(int) % 2).astype(bool))
        answers["status"] = "ok"
        table = summary_json(answers, facts)["accuracy_cross"]["duration"]
        for values in table.values():
            for entry in values["domain"].values():
                right = round(entry["accuracy"] * entry["n"])
                alone = stats.binomtest(right, entry["n"]).proportion_ci(method="wilson")
                width = entry["ci95"][1] - entry["ci95"][0]
                assert width > 1.2 * (alone.high - alone.low)

    def test_the_page_shows_them(self, videomme):
        answers, facts, _ = videomme
        page = render_html(summarize(answers, facts), facts, jobs={})
        assert "duration short, domain" in page

    def test_other_benchmarks_have_none(self):
        facts = facts_of(cell("full"))
        assert summary_json(fake_answers(facts), facts)["accuracy_cross"] == {}


class TestPairedAgainstScipy:
    """The paired statistics of a summary against scipy's on the same answers."""

    @pytest.fixture
    def pair(self):
        facts = facts_of(cell("full"), cell("random", 0.1))
        answers = fake_answers(facts, num_clips=50, failed_clips=(1, 2))
        versus = summary_json(answers, facts)["cells"][1]["versus_full"]
        right = answers.assign(right=answers["correct"].fillna(False) & (answers["status"] == "ok"))
        table = right.pivot(index=["video_id", "question_id"], columns="cell", values="right")
        return versus, table["random r=0.1"].astype(int), table["full"].astype(int)

    def test_the_p_value_exchanges_whole_clips(self, pair):
        versus, ours, theirs = pair
        gained, lost = int((ours > theirs).sum()), int((ours < theirs).sum())
        assert (versus["num_gained"], versus["num_lost"]) == (gained, lost)
        per_clip = (ours - theirs).groupby("video_id").sum()
        assert versus["p_value"] == sign_flip_p_value(per_clip.to_numpy())
        assert versus["p_value"] > stats.binomtest(gained, gained + lost).pvalue

    def test_the_interval_is_the_t_interval_of_the_clips(self, pair):
        versus, ours, theirs = pair
        per_clip = (ours - theirs).groupby("video_id").agg(["mean", "size"])
        assert per_clip["size"].nunique() == 1
        assert versus["difference"] == pytest.approx((ours - theirs).mean())
        interval = stats.ttest_1samp(per_clip["mean"], 0).confidence_interval()
        assert versus["difference_ci95"] == pytest.approx([interval.low, interval.high], abs=1e-6)
        assert (versus["num_clips"], versus["too_few_clips"]) == (50, False)
        error = per_clip["mean"].sem()
        reach = stats.t.ppf(0.975, 49) + stats.t.ppf(0.8, 49)
        assert versus["detectable_difference"] == pytest.approx(reach * error, abs=1e-6)
