"""Tables, figures and the page of a run: what a reader sees is what the summary holds."""

import base64
import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from fake_answers import cell, facts_of, fake_answers, write_run
from PIL import Image

from jobs.canvas import DARK
from jobs.compare import report_runs
from jobs.plots import draw_plots, save_plots
from jobs.report import render_html, write_report
from jobs.summary import failed_rows, summarize
from jobs.tables import (
    MAX_WIDTH,
    csv_table,
    latex_table,
    markdown_table,
    percent,
    points,
    render_table,
)

TANGO = cell("tango", 0.1)
SWEEP = (cell("full"), TANGO, cell("tango", 0.2), cell("random", 0.1))
FEW = "Intervals of differences are too narrow with so few clips: 12 of shapes."
PNG = b"\x89PNG\r\n\x1a\n"


class Page(HTMLParser):
    """Visible text, tag counts, attribute values; complains about tags that do not match."""

    def __init__(self, html):
        super().__init__()
        self.text, self.tags, self.links, self.open = [], [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "srcset", "href")]
        if tag not in ("meta", "img", "br", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", " ".join(self.text))


@pytest.fixture(scope="module")
def sweep():
    facts = facts_of(*SWEEP, note="untrained weights: the answers are random")
    answers = fake_answers(facts, failed_clips=(2, 5), hits=0.1)
    return summarize(answers, facts), facts, answers


def page_of(facts, answers):
    summary = summarize(answers, facts)
    return Page(
        render_html(summary, facts, failures=failed_rows(answers), jobs={"job.yaml": "a: 1"})
    )


class TestTable:
    def test_shows_every_cell_within_100_columns(self, sweep):
        lines = render_table(sweep[0]["cells"]).splitlines()
        assert max(map(len, lines)) <= MAX_WIDTH
        assert len({len(line) for line in lines}) == 1
        entry = sweep[0]["cells"][1]
        (line,) = [text for text in lines if text.startswith("tango r=0.1 ")]
        low, high = entry["accuracy_ci95"]
        assert f"{100 * entry['accuracy']:.1f}" in line
        assert f"{100 * low:.1f} to {100 * high:.1f}" in line
        assert f"{entry['cache']['hits']}/40" in line
        assert line.endswith(" 6")

    def test_names_benchmarks_once_and_shortens_names_that_do_not_fit(self):
        long = cell("tango", 0.1, "mvbench")
        object.__setattr__(long, "name", "tango with " + "many " * 30 + "options")
        facts = facts_of(TANGO, long)
        lines = render_table(summarize(fake_answers(facts), facts)["cells"]).splitlines()
        assert [line for line in lines if line in ("shapes", "mvbench")] == ["shapes", "mvbench"]
        assert max(map(len, lines)) == MAX_WIDTH
        assert "…" in lines[-1]

    def test_csv_holds_unrounded_figures(self, sweep):
        rows = list(csv.DictReader(io.StringIO(csv_table(sweep[0]["cells"]))))
        assert [row["cell"] for row in rows] == [entry.name for entry in SWEEP]
        entry = sweep[0]["cells"][1]
        assert float(rows[1]["accuracy"]) == entry["accuracy"]
        assert float(rows[1]["versus_full_p"]) == entry["versus_full"]["p_value"]
        assert rows[0]["versus_full"] == ""

    def test_markdown_and_latex_have_one_line_per_cell_and_equal_columns(self, sweep):
        cells = sweep[0]["cells"]
        markdown = markdown_table(cells).splitlines()
        assert len(markdown) == 2 + len(cells)
        assert len({line.count("|") for line in markdown}) == 1
        body = latex_table(cells).split("\\midrule\n")[1].split("\n\\bottomrule")[0].splitlines()
        assert len(body) == len(cells)
        assert all(line.endswith(r" \\") and line.count(" & ") == 11 for line in body)

    def test_latex_escapes_what_would_break_a_document(self):
        odd = cell("tango", 0.1)
        object.__setattr__(odd, "name", r"a_b 5% & {x} \y")
        facts = facts_of(odd)
        table = latex_table(summarize(fake_answers(facts), facts)["cells"])
        assert r"a\_b 5\% \& \{x\} \textbackslash{}y" in table

    @pytest.mark.parametrize(
        ("share", "text"),
        [(None, "-"), (0.1234, "+12.3"), (-0.04, "\N{MINUS SIGN}4.0"), (0.0, "+0.0")],
    )
    def test_differences_show_their_sign(self, share, text):
        assert points(share) == text
        assert percent(None) == "-"


class TestPlots:
    def test_are_images_and_the_themes_differ(self, sweep, tmp_path):
        paths = save_plots(sweep[0]["cells"], tmp_path / "plots")
        assert {path.name for path in paths} == {
            "accuracy_vs_retention.png",
            "latency.png",
            "tokens_kept.png",
        }
        dark = draw_plots(sweep[0]["cells"], DARK)
        for path in paths:
            light = np.asarray(Image.open(path).convert("L"), float)
            assert light.mean() > 200
            assert np.asarray(Image.open(io.BytesIO(dark[path.name])).convert("L")).mean() < 80
            assert light.std() > 10

    def test_are_left_out_where_there_is_nothing_to_draw(self):
        facts = facts_of(cell("full"))
        answers = fake_answers(facts, num_clips=3)
        answers["answer"] = answers["correct"] = answers["choice"] = None
        assert set(draw_plots(summarize(answers, facts)["cells"])) == {"latency.png"}


class TestPage:
    def test_needs_no_network_and_runs_no_script(self, sweep):
        page = page_of(*sweep[1:])
        assert "script" not in page.tags
        assert len(page.links) == 6
        for link in page.links:
            assert base64.b64decode(link.removeprefix("data:image/png;base64,")).startswith(PNG)

    def test_shows_the_numbers_of_the_summary(self, sweep):
        summary, facts, answers = sweep
        words = page_of(facts, answers).words
        assert facts.note in words
        for entry in summary["cells"]:
            low, high = entry["accuracy_ci95"]
            assert f"{100 * low:.1f} to {100 * high:.1f}" in words
            for group in entry["accuracy_by"]["duration"].values():
                assert f"{100 * group['accuracy']:.1f}" in words
        assert "clip 2.mp4: 0 of 32 frames decoded" in words
        assert "ray 2.60.0" in words

    def test_escapes_everything_that_comes_from_data(self):
        evil = "<script>alert('x')</script>&\"<b>"
        odd = cell("tango", 0.1, benchmark=evil, note=evil)
        object.__setattr__(odd, "name", evil)
        facts = facts_of(odd, note=evil, versions={evil: evil}, run_id=evil, device=evil)
        answers = fake_answers(facts, num_clips=4, failed_clips=(1,))
        answers["error"], answers["video_id"] = evil + answers["error"], evil + answers["video_id"]
        answers["groups"] = '{"<b>": "<i onload=x>"}'
        summary = summarize(answers, facts)
        html = render_html(summary, facts, failures=failed_rows(answers), jobs={evil: evil})
        page = Page(html)
        assert "<script" not in html
        assert not {"script", "b_"} & set(page.tags)
        assert page.tags.count("b") == len(re.findall(r'<div class="card">', html))
        assert page.words.count("<script>") > 5

    def test_a_run_whose_clips_all_failed_has_a_page_with_the_reasons(self, tmp_path):
        facts = facts_of(cell("full"), TANGO)
        answers = fake_answers(facts, num_clips=3, failed_clips=range(3), unparsed=0)
        run = write_run(tmp_path / "run", answers, facts)
        words = Page(write_report(run).read_text()).words
        assert "Nothing was measured." in words
        assert words.count("the file is probably truncated") == 3
        assert "0.0" in words

    def test_free_form_questions_have_a_page_without_accuracy(self):
        facts = facts_of(TANGO)
        answers = fake_answers(facts, num_clips=3, unparsed=0)
        answers["answer"] = answers["correct"] = answers["choice"] = None
        page = page_of(facts, answers)
        assert "Accuracy by group" not in page.words
        assert "No clip and no question failed." in page.words

    def test_profile_mode_shows_speed_ups(self):
        facts = facts_of(cell("full"), TANGO, mode="profile")
        assert re.search(
            "[0-9]\\.[0-9]{2}\N{MULTIPLICATION SIGN}", page_of(facts, fake_answers(facts)).words
        )

    def test_many_reasons_are_cut_and_counted(self):
        facts = facts_of(TANGO)
        answers = fake_answers(facts, num_clips=60, failed_clips=range(55))
        assert "5 more reasons are in failures.parquet" in page_of(facts, answers).words


class TestCompareRuns:
    def run_of(self, folder, *cells, **changes):
        facts = facts_of(*cells, run_id=folder.name, **changes)
        return write_run(folder, fake_answers(facts), facts)

    def summary_of(self, output):
        import json

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
            "paper_table.md", "paper_table.csv", "paper_table.tex", "grid.md", "breakdowns.md",
            "breakdowns.csv",
        }  # fmt: skip

    def test_without_full_the_first_run_is_the_reference(self, tmp_path):
        runs = [self.run_of(tmp_path / "a", TANGO), self.run_of(tmp_path / "b", SWEEP[3])]
        page = report_runs(runs, tmp_path / "out")
        first, second = self.summary_of(tmp_path / "out")["cells"]
        assert first["versus_full"] is None
        assert second["versus_full"]["difference"] == pytest.approx(
            second["accuracy"] - first["accuracy"]
        )
        assert "vs a: tango r=0.1, points" in Page(page.read_text()).words

    def test_full_of_another_model_is_no_reference(self, tmp_path):
        runs = [
            self.run_of(tmp_path / "a", cell("full")),
            self.run_of(tmp_path / "b", SWEEP[3], model="qwen2.5-vl-7b"),
        ]
        report_runs(runs, tmp_path / "out")
        versus = self.summary_of(tmp_path / "out")["cells"][1]["versus_full"]
        assert versus is not None
        assert "vs a: full, points" in Page((tmp_path / "out" / "report.html").read_text()).words

    def test_full_with_other_frames_is_no_reference(self, tmp_path):
        runs = [
            self.run_of(tmp_path / "a", SWEEP[3], num_frames=8),
            self.run_of(tmp_path / "b", cell("full"), num_frames=16),
            self.run_of(tmp_path / "c", TANGO, num_frames=16),
        ]
        page = report_runs(runs, tmp_path / "out")
        first, _, last = self.summary_of(tmp_path / "out")["cells"]
        assert first["versus_full"] is None
        assert last["versus_full"] is not None
        assert "vs full, points" in Page(page.read_text()).words

    def test_full_under_the_same_protocol_comes_first(self, tmp_path):
        other, same, tango = (
            replace(entry, protocol=protocol)
            for entry, protocol in (
                (cell("full"), "lmms_eval"),
                (cell("full"), "vlmevalkit"),
                (TANGO, "vlmevalkit"),
            )
        )
        facts = facts_of(same, run_id="b")
        answers = fake_answers(facts)
        answers["correct"] = False
        runs = [
            self.run_of(tmp_path / "a", other),
            write_run(tmp_path / "b", answers, facts),
            self.run_of(tmp_path / "c", tango),
        ]
        report_runs(runs, tmp_path / "out")
        last = self.summary_of(tmp_path / "out")["cells"][2]
        assert last["versus_full"]["difference"] == pytest.approx(last["accuracy"])

    def test_full_under_another_protocol_is_no_reference(self, tmp_path):
        runs = [
            self.run_of(tmp_path / "a", replace(cell("full"), protocol="vlmevalkit")),
            self.run_of(tmp_path / "b", replace(TANGO, protocol="lmms_eval")),
        ]
        page = report_runs(runs, tmp_path / "out", baselines=["full"])
        pruned = self.summary_of(tmp_path / "out")["cells"][1]
        assert pruned["versus_full"] is None
        assert pruned["versus"] == {"full": None}
        note = (
            "Not compared with all tokens: llava-onevision-7b on shapes under lmms_eval; they were "
            "run under vlmevalkit, with other prompts or frames."
        )
        assert note in Page(page.read_text()).words
        for name in ("table.md", "table.tex", "paper_table.md", "paper_table.tex"):
            assert note in (tmp_path / "out" / name).read_text()

    def test_a_protocol_that_is_not_known_may_be_the_same(self, tmp_path):
        full = replace(cell("full"), protocol="vlmevalkit")
        runs = [self.run_of(tmp_path / "a", full), self.run_of(tmp_path / "b", TANGO)]
        report_runs(runs, tmp_path / "out")
        assert self.summary_of(tmp_path / "out")["cells"][1]["versus_full"] is not None

    def test_one_run_is_reported_in_place(self, tmp_path):
        run = self.run_of(tmp_path / "a", *SWEEP)
        assert report_runs([run]) == run / "report.html"
        assert (run / "table.md").read_text().count("\n") == 2 + len(SWEEP)

    def test_several_runs_need_a_place_to_write_to(self, tmp_path):
        with pytest.raises(ValueError, match="--output"):
            report_runs([tmp_path, tmp_path])

    def test_a_run_of_one_method_may_be_reported_elsewhere(self, tmp_path):
        facts = facts_of(TANGO)
        run = write_run(tmp_path / "run", fake_answers(facts, num_clips=20), facts)
        inside = Page(write_report(run).read_text()).words
        elsewhere = Page(report_runs([run], tmp_path / "elsewhere").read_text()).words
        card = re.search(r"[\d.]+ accuracy %, [\d.]+ to [\d.]+ [\d.]+ tokens kept %", inside)
        assert card is not None
        assert card[0] in elsewhere


@pytest.mark.parametrize(
    ("num_clips", "cells", "noted"), [(12, SWEEP, 1), (13, SWEEP, 0), (2, (TANGO,), 0)]
)
def test_intervals_of_differences_from_few_clips_are_noted(num_clips, cells, noted, tmp_path):
    facts = facts_of(*cells)
    run = write_run(tmp_path / "run", fake_answers(facts, num_clips=num_clips), facts)
    assert Page(write_report(run).read_text()).words.count(FEW) == noted
    report_runs([run], tmp_path / "both")
    for name in ("table.md", "paper_table.md", "table.tex"):
        assert (tmp_path / "both" / name).read_text().count(FEW) == noted
