"""Facts, answers and summaries in files: read again as written, and damaged ones are named."""

import json

import pytest
from fake_answers import cell, facts_of, fake_answers, summary_json, write_run
from summaries import read_answers

from jobs.results.cell_summary import RunSummary
from jobs.results.facts import JobFacts, SkippedMethod

TANGO = cell("tango", 0.1)


class TestFiles:
    def test_a_directory_that_is_no_run_is_refused(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"no facts\.json.*--resume"):
            JobFacts.load(tmp_path)

    @pytest.mark.parametrize("text", ["{", "{}", "[]", "3", '{"cells": [{}]}', '{"cells": [3]}'])
    def test_damaged_facts_are_refused_by_file(self, text, tmp_path):
        (tmp_path / "facts.json").write_text(text)
        with pytest.raises(ValueError, match=r"facts\.json is damaged") as error:
            JobFacts.load(tmp_path)
        assert "\n" not in str(error.value)

    def test_a_damaged_part_is_named_with_the_remedy(self, tmp_path):
        run = write_run(tmp_path / "run", fake_answers(facts_of(TANGO)), facts_of(TANGO))
        part = run / "answers" / "part-00001.parquet"
        part.write_bytes(part.read_bytes()[:-20])
        remedy = r"part-00001\.parquet is damaged .*; --resume run asks its questions"
        with pytest.raises(ValueError, match=remedy) as error:
            read_answers(run)
        assert "\n" not in str(error.value)


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
