"""Numbers of a run against numbers counted by hand from its answers."""

import json

import numpy as np
import pandas as pd
import pytest
from fake_answers import QWEN2_7B, cell, facts_of, fake_answers, summary_json, write_run

from jobs.results.facts import CellFacts, JobFacts, SkippedMethod
from jobs.results.run_summary import RunSummary
from jobs.results.scores import read_groups
from jobs.results.summary import failed_rows, read_answers, write_summary
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

    def test_a_failed_row_marked_correct_is_still_wrong(self):
        answers = fake_answers(facts_of(TANGO), unparsed=0)
        answers["status"], answers["correct"] = "answer_failed", True
        assert summary_json(answers, facts_of(TANGO))["accuracy"] == 0

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

    def test_rates_are_over_the_wall_time(self):
        rates = summary_of(TANGO)["throughput"]
        assert rates["wall_s"] == 321.5
        assert rates["clips_per_s"] == pytest.approx(40 / 321.5)
        assert rates["questions_per_s"] == pytest.approx(120 / 321.5)
        assert rates["decode_tokens_per_s"] == pytest.approx(1000 / 24, rel=0.05)


class TestLatencies:
    def test_decoding_and_vision_count_once_per_clip_that_was_computed(self):
        latency = summary_of(TANGO, hits=0.25)["latency_ms"]
        assert [latency[stage]["n"] for stage in ("decode_video", "vision", "compress")] == [30] * 3

    def test_numbers_a_cache_hit_carries_over_are_no_measurement(self):
        answers = fake_answers(facts_of(TANGO)).assign(cache="hit")
        latency = summary_json(answers, facts_of(TANGO))["latency_ms"]
        assert set(latency) == {"cache_read", "prefill", "ttft", "decode"}

    def test_prefill_is_that_of_the_question_which_pays_for_the_shared_prefix(self):
        latency = summary_of(TANGO)["latency_ms"]
        assert latency["prefill"]["n"] == 40
        assert latency["prefill"]["p50"] == pytest.approx(80, rel=0.1)

    def test_profile_mode_counts_every_question(self):
        facts = facts_of(TANGO, mode="profile")
        latency = summary_of(facts=facts)["latency_ms"]
        assert latency["prefill"]["n"] == latency["ttft"]["n"] == 120

    def test_a_sweep_shares_decode_and_vision_but_not_compression(self):
        summary = summary_of(cell("full"), TANGO, cell("random", 0.1))
        assert summary["latency_ms"]["vision"]["n"] == 40
        assert summary["latency_ms"]["compress"]["n"] == 120

    def test_percentiles_are_numpys(self):
        answers = fake_answers(facts_of(TANGO))
        values = answers.drop_duplicates("video_id")["encode_ms"]
        vision = summary_json(answers, facts_of(TANGO))["latency_ms"]["vision"]
        assert vision["p50"] == pytest.approx(np.percentile(values, 50))
        assert vision["p90"] == pytest.approx(np.percentile(values, 90))
        assert vision["mean"] == pytest.approx(values.mean())


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
    def test_free_form_questions_have_no_accuracy(self):
        facts = facts_of(cell("full"), TANGO)
        answers = fake_answers(facts)
        answers["answer"] = answers["correct"] = answers["choice"] = None
        for entry in summary_json(answers, facts)["cells"]:
            assert entry["accuracy"] is entry["accuracy_ci95"] is entry["versus_full"] is None
            assert entry["num_scored"] == 0
            assert entry["num_answered"] > 0

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


class TestFiles:
    def test_facts_survive_the_round_trip(self, tmp_path):
        facts = facts_of(cell("full"), cell("tango", 0.1, inner={"layer": 18}), note="untrained")
        facts.save(tmp_path)
        assert JobFacts.load(tmp_path) == facts

    def test_a_directory_that_is_no_run_is_refused(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"no facts\.json"):
            JobFacts.load(tmp_path)

    def test_an_interrupted_run_and_a_directory_of_runs_say_what_to_name_instead(self, tmp_path):
        facts = facts_of(cell("full"))
        (tmp_path / "one").mkdir()
        (tmp_path / "one" / "job.yaml").write_text("")
        with pytest.raises(FileNotFoundError, match="continue it with --resume one"):
            JobFacts.load(tmp_path / "one")
        facts.save(tmp_path / "one")
        with pytest.raises(FileNotFoundError, match=r"holds 1 runs, name those .*/one"):
            JobFacts.load(tmp_path)

    @pytest.mark.parametrize("text", ["{", "{}", "[]", "3", '{"cells": [{}]}', '{"cells": [3]}'])
    def test_damaged_facts_are_refused_by_file(self, text, tmp_path):
        (tmp_path / "facts.json").write_text(text)
        with pytest.raises(ValueError, match=r"facts\.json is damaged") as error:
            JobFacts.load(tmp_path)
        assert "\n" not in str(error.value)

    def test_a_run_without_answers_says_how_to_continue(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="--resume"):
            read_answers(tmp_path)

    def test_a_damaged_part_is_named_with_the_remedy(self, tmp_path):
        run = write_run(tmp_path / "run", fake_answers(facts_of(TANGO)), facts_of(TANGO))
        part = run / "answers" / "part-00001.parquet"
        part.write_bytes(part.read_bytes()[:-20])
        remedy = r"part-00001\.parquet is damaged .*; --resume run sets it aside and asks"
        with pytest.raises(ValueError, match=remedy) as error:
            read_answers(run)
        assert "\n" not in str(error.value)

    def test_shares_outside_0_and_1_are_refused(self):
        with pytest.raises(ValueError, match=r"in \(0, 1\], got 1.5"):
            CellFacts("x", "shapes", "tango", 1.5)


@pytest.mark.parametrize(
    "stored",
    ['{"task": "count"}', {"task": "count"}, [("task", "count")], np.array([("task", "count")])],
    ids=["json", "mapping", "pairs", "array"],
)
def test_groups_are_read_in_every_form_that_parquet_readers_give(stored):
    assert read_groups(stored) == {"task": "count"}


@pytest.mark.parametrize("nothing", [None, "", float("nan"), [], "{}"])
def test_missing_groups_are_no_groups(nothing):
    assert read_groups(nothing) == {}


class TestForm:
    """`summary.json` as types: what is written can be read again, and so can older files."""

    def read_again(self, answers, facts):
        data = summary_json(answers, facts)
        return data, RunSummary.from_json(data)

    @pytest.mark.parametrize(
        ("cells", "changes"),
        [
            ((TANGO,), {}),
            ((cell("full"), TANGO), {"note": "untrained", "peak_gib": 2.5}),
            ((cell("full"), TANGO), {"kind": "evaluate", "mode": "profile"}),
            ((cell("full", 1.0, "mlvu"), cell("tango", 0.1, "videomme")), {}),
        ],
        ids=["one", "sweep", "profile", "benchmarks"],
    )
    def test_a_summary_survives_the_round_trip(self, cells, changes):
        skipped = (SkippedMethod("fastv r=0.1", "fastv", 0.1, "too few layers"),)
        facts = facts_of(*cells, skipped=skipped, **changes)
        data, summary = self.read_again(fake_answers(facts, failed_clips=(1,)), facts)
        again = json.dumps(summary.to_json())
        assert again == json.dumps(data)
        assert summary.skipped == skipped
        assert summary.cells[-1].model == facts.model

    def test_a_profile_of_evaluate_is_about_its_method(self):
        facts = facts_of(cell("full"), TANGO, kind="evaluate", mode="profile")
        data, summary = self.read_again(fake_answers(facts), facts)
        assert data["method"] == "tango"
        assert data["num_questions"] == data["cells"][1]["num_questions"] == 120
        assert summary.counts == summary.cells[1].counts
        assert summary.throughput.wall_s == data["throughput"]["wall_s"] == facts.wall_s

    def test_keys_of_other_versions_are_ignored_and_missing_ones_are_unknown(self):
        data = summary_json(fake_answers(facts_of(TANGO)), facts_of(TANGO))
        (entry,) = data["cells"]
        for key in ("accuracy_macro", "harness_accuracy", "retention_with_newlines", "peak_gib"):
            del data[key], entry[key]
        del entry["versus_full"], data["left_out"]
        entry["latency_ms"]["vision"]["p99"] = data["from_the_future"] = 1.0
        summary = RunSummary.from_json(data)
        (found,) = summary.cells
        assert found.macro is found.harness is found.peak_gib is None
        assert found.retention_with_newlines is found.versus_full is None
        assert found.latency_ms["vision"].p50 == entry["latency_ms"]["vision"]["p50"]
        assert summary.skipped == ()

    def test_facts_keep_the_keys_of_their_file(self):
        skipped = (SkippedMethod("fastv r=0.1", "fastv", 0.1, "too few layers"),)
        facts = facts_of(TANGO, skipped=skipped)
        data = json.loads(json.dumps(facts.to_json()))
        assert data["decoder"]["num_layers"] == 28
        assert data["left_out"][0]["name"] == "fastv r=0.1"
        assert not {"llm", "skipped"} & data.keys()
        assert JobFacts.from_json(data) == facts


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("wall_s", "[3.5]"),
        ("git_commit", ["a"]),
        ("cells.name", {"a": 1}),
        ("cells.options", 7),
        ("cells.protocol", {"vlmevalkit": "vlmevalkit"}),
    ],
)
def test_facts_of_another_kind_are_called_damaged(key, value, tmp_path):
    facts = facts_of(TANGO).to_json()
    section = facts["cells"][0] if "." in key else facts
    section[key.rpartition(".")[2]] = value
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    with pytest.raises(ValueError, match=r"facts.json is damaged .* --resume"):
        JobFacts.load(tmp_path)
