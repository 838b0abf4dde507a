"""Several runs side by side: paired tests across runs, and one page."""

import json
from dataclasses import replace

import pytest
from fake_answers import cell, facts_of, fake_answers, write_run
from report_page import SWEEP, TANGO, Page

from jobs.report.compare import report_runs


class TestCompareRuns:
    def run_of(self, folder, *cells, **changes):
        facts = facts_of(*cells, run_id=folder.name, **changes)
        return write_run(folder, fake_answers(facts), facts)

    def summary_of(self, output):
        return json.loads((output / "summary.json").read_text())

    def test_cells_are_paired_with_full_of_another_run(self, tmp_path):
        runs = [
            self.run_of(tmp_path / "a", cell("full")),
            self.run_of(tmp_path / "b", TANGO),
            self.run_of(tmp_path / "both", *SWEEP[:2]),
        ]
        page = report_runs(runs, tmp_path / "out")
        alone, together = (self.summary_of(tmp_path / "out")["cells"][i] for i in (1, 3))
        assert alone["versus_full"] == together["versus_full"]
        assert alone["versus_full"]["num_questions"] == 120
        words = Page(page.read_text()).words
        assert "a/job.yaml" in words
        assert "b/job.yaml" in words
        assert {path.name for path in (tmp_path / "out").iterdir()} == {
            "report.html", "summary.json", "table.md", "table.csv", "table.tex", "plots",
            "paper_table.md", "paper_table.csv", "paper_table.tex", "breakdowns.md",
            "breakdowns.csv",
        }  # fmt: skip

    def test_answers_that_are_lost_are_counted_below_every_table(self, tmp_path):
        facts = replace(facts_of(*SWEEP[:2], run_id="a"), num_answers=240)
        answers = fake_answers(facts).sort_values(["video_id", "question_id"], kind="stable")
        whole = write_run(tmp_path / "a", answers, facts)
        other = self.run_of(tmp_path / "b", *SWEEP[:2])
        page = report_runs([whole], None)
        assert "Answers are lost" not in page.read_text()
        report_runs([whole, other], tmp_path / "both")
        assert "Answers are lost" not in (tmp_path / "both" / "table.md").read_text()
        (whole / "answers" / "part-00001.parquet").unlink()
        for runs, output in (([whole], None), ([whole, other], tmp_path / "both")):
            page = report_runs(runs, output)
            for text in (Page(page.read_text()).words, (page.parent / "table.md").read_text()):
                assert f"Answers are lost: the files of {whole} hold 120 of 240" in text

    def test_without_full_nothing_is_called_a_difference_to_it(self, tmp_path):
        runs = [self.run_of(tmp_path / "a", TANGO), self.run_of(tmp_path / "b", SWEEP[3])]
        page = report_runs(runs, tmp_path / "out")
        for entry in self.summary_of(tmp_path / "out")["cells"]:
            assert entry["versus_full"] is None
        note = "Not compared with all tokens: llava-onevision-7b on shapes; nobody ran full for it."
        words = Page(page.read_text()).words
        assert words.count(note) == 1
        for name in ("table.md", "table.tex", "paper_table.md", "paper_table.tex"):
            text = (tmp_path / "out" / name).read_text().replace("{-}", "-")
            assert text.count(note) == 1, name

    def test_several_runs_need_a_place_to_write_to(self, tmp_path):
        with pytest.raises(ValueError, match="--output"):
            report_runs([tmp_path, tmp_path])


@pytest.mark.parametrize("command", [["report"], ["export", "--format", "lmms_eval"]])
def test_an_output_that_is_a_file_is_refused_by_name(tango, tmp_path, command):
    facts = facts_of(TANGO)
    run = write_run(tmp_path / "run", fake_answers(facts, num_clips=2), facts)
    (tmp_path / "taken").touch()
    code, _, err = tango(*command, run, "--output", "taken")
    assert code == 2
    assert "tango: --output taken cannot be written to: " in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("num_clips", "few"), [(4, True), (40, False)])
def test_differences_that_too_few_clips_support_have_no_interval(num_clips, few, tmp_path):
    facts = facts_of(*SWEEP)
    run = write_run(tmp_path / "run", fake_answers(facts, num_clips=num_clips), facts)
    report_runs([run])
    assert ("(too few clips)" in (run / "table.md").read_text()) is few
