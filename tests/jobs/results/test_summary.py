"""Numbers of a run against numbers counted by hand from its answers."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from fake_answers import QWEN2_7B, cell, facts_of, fake_answers, summary_json, write_run
from summaries import read_answers, write_summary

from jobs.results.summary import Reduction, failed_rows, summarize_reduced
from tango_core.flops import prefill_flops

CONTRACT = {
    "accuracy", "accuracy_ci95", "accuracy_by", "num_questions", "num_answered", "num_failed",
    "retention_requested", "retention_actual", "equivalent_retention", "tokens_total",
    "tokens_kept", "latency_ms", "cache", "throughput", "prefill_tflops",
}  # fmt: skip
TANGO = cell("tango", 0.1)


def summary_of(*cells, facts=None, **options):
    facts = facts or facts_of(*cells)
    return summary_json(fake_answers(facts, **options), facts)


class TestOneCell:
    def test_is_flat_and_also_listed(self):
        summary = summary_of(TANGO)
        assert summary.keys() >= CONTRACT
        assert len(summary["cells"]) == 1
        assert summary["cells"][0].keys() >= CONTRACT
        assert summary["accuracy"] == summary["cells"][0]["accuracy"]

    def test_failed_and_unparsed_count_as_wrong_in_the_headline_only(self):
        answers = fake_answers(facts_of(TANGO), failed_clips=(1, 7), unparsed=0.2)
        summary = summary_json(answers, facts_of(TANGO))
        right = int(answers["correct"].sum())
        answered = int((answers["status"] == "ok").sum())
        assert summary["accuracy"] == pytest.approx(right / len(answers))
        assert summary["accuracy_answered"] == pytest.approx(right / answered)
        assert (summary["num_failed"], summary["num_failed_clips"]) == (6, 2)
        parts = [summary[f"num_{name}"] for name in ("answered", "unparsed", "failed")]
        assert sum(parts) == summary["num_questions"] == 120
        assert min(parts) > 0

    def test_break_downs_count_every_question_in_each_group(self):
        answers = fake_answers(facts_of(TANGO))
        table = summary_json(answers, facts_of(TANGO))["accuracy_by"]
        parsed = pd.DataFrame([json.loads(value) for value in answers["groups"]])
        for group in ("duration", "task"):
            expected = answers["correct"].astype(float).groupby(parsed[group]).agg(["mean", "size"])
            got = {value: (entry["accuracy"], entry["n"]) for value, entry in table[group].items()}
            assert got == {k: (pytest.approx(m), n) for k, m, n in expected.itertuples()}

    def test_tokens_are_counted_once_per_clip(self):
        answers = fake_answers(facts_of(TANGO), failed_clips=(0,))
        summary = summary_json(answers, facts_of(TANGO))
        clips = answers.dropna(subset=["tokens_kept"]).groupby("video_id").first()
        assert summary["tokens_total"] == 39 * 32 * 196
        assert summary["tokens_kept"] == clips["tokens_kept"].sum()
        assert summary["retention_actual"] == pytest.approx(
            clips["tokens_kept"].sum() / (39 * 32 * 196)
        )
        assert summary["equivalent_retention"] == summary["retention_actual"]
        assert summary["tokens_with_newlines"] == summary["tokens_kept"] + 39
        assert summary["clip_text_tokens"] == 39 * 7
        assert summary["retention_with_newlines"] == pytest.approx(
            summary["tokens_with_newlines"] / (39 * 32 * 196)
        )

    def test_newlines_are_unknown_in_runs_of_earlier_versions(self):
        answers = fake_answers(facts_of(TANGO))
        answers = answers.drop(columns=["tokens_with_newlines", "clip_text_tokens"])
        summary = summary_json(answers, facts_of(TANGO))
        assert summary["clip_text_tokens"] == 0
        assert summary["tokens_with_newlines"] is None
        assert summary["retention_with_newlines"] is None

    def test_equivalent_retention_averages_over_the_layers(self):
        hybrid = cell("tango", 0.1, inner={"name": "fastv-merge"})
        summary = summary_of(hybrid)
        assert summary["retention_actual"] == pytest.approx(0.1217, abs=0.003)
        assert summary["equivalent_retention"] == pytest.approx(
            summary["retention_actual"] * 23 / 28
        )

    def test_cost_is_the_mean_over_the_prompts(self):
        answers = fake_answers(facts_of(TANGO))
        expected = np.mean([prefill_flops(QWEN2_7B, int(n)) for n in answers["prompt_tokens"]])
        assert summary_json(answers, facts_of(TANGO))["prefill_tflops"] == pytest.approx(
            expected / 1e12
        )


class TestLatencies:
    def test_decoding_and_vision_count_once_per_clip_that_was_computed(self):
        latency = summary_of(TANGO, hits=0.25)["latency_ms"]
        assert [latency[stage]["n"] for stage in ("decode_video", "vision", "compress")] == [30] * 3

    def test_numbers_a_cache_hit_carries_over_are_no_measurement(self):
        answers = fake_answers(facts_of(TANGO)).assign(cache="hit")
        latency = summary_json(answers, facts_of(TANGO))["latency_ms"]
        assert set(latency) == {"cache_read", "prefill", "ttft", "decode"}

    def test_pruning_of_stored_features_is_measured(self):
        answers = fake_answers(facts_of(TANGO)).assign(cache="derived")
        summary = summary_json(answers, facts_of(TANGO))
        assert summary["latency_ms"]["compress"]["n"] == 40
        assert not {"decode_video", "vision"} & set(summary["latency_ms"])
        assert summary["cache"] == {"hits": 40, "misses": 0}

    def test_prefill_is_that_of_the_question_which_pays_for_the_shared_prefix(self):
        latency = summary_of(TANGO)["latency_ms"]
        assert latency["prefill"]["n"] == 40
        assert latency["prefill"]["p50"] == pytest.approx(80, rel=0.1)

    def test_above_a_bound_percentiles_are_those_of_the_first_answers(self, monkeypatch):
        monkeypatch.setattr("jobs.results.measurements._MOST_TIMED", 60)
        answers = fake_answers(facts_of(TANGO))
        values = answers.drop_duplicates("video_id")["encode_ms"]
        reduction = Reduction("throughput")
        for part in (answers[:60], answers[60:]):
            reduction.add(pa.Table.from_pandas(part, preserve_index=False))
        vision = summarize_reduced(reduction, facts_of(TANGO)).latency_ms["vision"]
        assert vision.p50 == pytest.approx(np.percentile(values[:20], 50))
        assert vision.mean == pytest.approx(values.mean())
        assert vision.n == len(values)


class TestCost:
    def test_the_first_token_waits_for_vision_pruning_and_the_language_model(self):
        for mode in ("throughput", "profile"):
            facts = facts_of(TANGO, mode=mode)
            answers = fake_answers(facts)
            columns = answers[["encode_ms", "compress_ms", "ttft_ms"]]
            first = answers.groupby("video_id").cumcount() == 0
            parts = columns[first].median().sum()
            expected = columns.sum(axis=1).median() if mode == "profile" else parts
            assert summary_json(answers, facts)["first_token_ms"] == pytest.approx(expected)
            cached = fake_answers(facts, hits=1.0)
            assert summary_json(cached, facts)["first_token_ms"] is None

    def test_pruning_is_measured_once_per_question_that_is_read(self):
        facts = facts_of(replace(TANGO, reads_question=True), mode="profile")
        answers = fake_answers(facts, questions=4)
        index = answers.groupby("video_id").cumcount()
        answers["compress_ms"] = index.map({0: 1.0, 1: 5.0, 2: 3.0, 3: 3.0})  # two of one text
        summary = summary_json(answers, facts)
        assert summary["reads_question"]
        assert summary["latency_ms"]["compress"]["n"] == 3 * 40
        assert summary["latency_ms"]["compress"]["p50"] == 3.0
        waits = answers[["encode_ms", "compress_ms", "ttft_ms"]].sum(axis=1)
        assert summary["first_token_ms"] == pytest.approx(waits.median())

    def test_the_encoder_counts_once_per_clip(self):
        answers = fake_answers(facts_of(TANGO))
        assert summary_json(answers, facts_of(TANGO))["encoder_tflops"] is None
        answers["encode_tflops"] = answers.groupby("video_id").ngroup().astype(float)
        answers.loc[0, "encode_tflops"] = None  # of a clip that was not encoded
        found = summary_json(answers, facts_of(TANGO))["encoder_tflops"]
        assert found == pytest.approx(np.arange(1, 40).mean())


class TestSeveralCells:
    def test_cells_keep_their_order_and_totals_are_the_runs(self):
        cells = [cell("full"), TANGO, cell("random", 0.2)]
        summary = summary_of(*cells, hits=0.5)
        assert [entry["cell"] for entry in summary["cells"]] == [entry.name for entry in cells]
        assert "accuracy" not in summary
        assert summary["cache"] == {"hits": 60, "misses": 60}
        assert summary["num_questions"] == 360
        assert summary["num_clips"] == 40

    def test_every_cell_is_paired_with_full_of_its_benchmark(self):
        cells = [cell("full"), TANGO, cell("tango", 0.1, "mvbench")]
        facts = facts_of(*cells)
        answers = fake_answers(facts)
        full, tango, other = summary_json(answers, facts)["cells"]
        assert full["versus_full"] is None
        assert other["versus_full"] is None
        pair = answers[answers["benchmark"] == "shapes"].pivot(
            index="question_id", columns="cell", values="correct"
        )
        ours, theirs = pair["tango r=0.1"].astype(bool), pair["full"].astype(bool)
        versus = tango["versus_full"]
        assert versus["num_gained"] == (ours & ~theirs).sum()
        assert versus["num_lost"] == (~ours & theirs).sum()
        assert versus["difference"] == pytest.approx(tango["accuracy"] - full["accuracy"])
        assert versus["difference_ci95"][0] <= versus["difference"] <= versus["difference_ci95"][1]

    def test_speed_up_is_reported_in_profile_mode_only(self):
        cells = (cell("full"), TANGO)
        profile = summary_of(facts=facts_of(*cells, mode="profile"))["cells"][1]["versus_full"]
        assert profile["ttft_speedup"] > profile["speedup_to_first_token"] > 1.5
        assert "ttft_speedup" not in summary_of(*cells)["cells"][1]["versus_full"]

    def test_a_cell_without_any_row_gets_a_summary(self):
        facts = facts_of(cell("full"), TANGO)
        answers = fake_answers(facts)
        empty = summary_json(answers[answers["cell"] == "full"], facts)["cells"][1]
        assert (empty["num_questions"], empty["accuracy"], empty["versus_full"]) == (0, None, None)


class TestNothingToScore:
    def test_a_run_whose_clips_all_failed_is_summarised_from_its_files(self, tmp_path):
        facts = facts_of(cell("full"), TANGO)
        answers = fake_answers(facts, num_clips=5, failed_clips=range(5), unparsed=0)
        run = write_run(tmp_path / "run", answers, facts)
        summary = write_summary(run)
        assert json.loads((run / "summary.json").read_text()) == summary.to_json()
        for entry in summary.to_json()["cells"]:
            assert entry["accuracy"] == 0
            assert entry["accuracy_ci95"][1] > 0.3
            assert entry["retention_actual"] is None
            assert entry["latency_ms"] == {}
            assert entry["prefill_tflops"] is None
        assert len(failed_rows(read_answers(run))) == 30
