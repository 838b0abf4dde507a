"""Scores beside the headline: as harnesses count, and by two groups at once."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from fake_answers import cell, facts_of, fake_answers, summary_json
from summaries import summarize

from jobs.report.tables.breakdowns import breakdown_files, breakdowns, breakdowns_csv


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

    def test_m_avg_is_the_last_column_of_the_break_down_by_task(self):
        answers, facts = run_of("mlvu", "vlmevalkit")
        (entry,) = summarize(answers, facts).cells
        by_task = entry.headline_by["task"]
        table = dict(breakdowns([entry]))["task"]
        values = [f"{value} ({task.num_questions})" for value, task in sorted(by_task.items())]
        assert table.header == ["cell", *values, f"mean (M-Avg) ({entry.counts.num_scored})"]
        mean = np.mean([task.value for task in by_task.values()])
        assert table.rows[0][-1] == f"{100 * mean:.1f}"
        assert table.markdown() in breakdown_files([entry])["breakdowns.md"]
        lines = list(csv.DictReader(io.StringIO(breakdowns_csv([entry]))))
        (line,) = [line for line in lines if line["value"] == "mean (M-Avg)"]
        assert (line["group"], float(line["accuracy"])) == ("task", pytest.approx(mean))
        assert line["accuracy_low"] == line["inner_group"] == ""


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
