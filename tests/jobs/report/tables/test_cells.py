"""Tables and figures of a run: what a reader sees is what the summary holds."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from fake_answers import cell, facts_of, fake_answers
from PIL import Image
from report_page import SWEEP, TANGO

from jobs.report.plots import draw_forests, draw_plots, save_plots
from jobs.report.tables.cells import MAX_WIDTH, cells_csv, cells_table, render_table
from jobs.report.theme import DARK
from jobs.results.summary import summarize

PNG = b"\x89PNG\r\n\x1a\n"


class TestTable:
    def test_shows_every_cell_within_100_columns(self, sweep):
        lines = render_table(sweep[0].cells).splitlines()
        assert max(map(len, lines)) <= MAX_WIDTH
        assert len({len(line) for line in lines}) == 1
        entry = sweep[0].cells[1]
        (line,) = [text for text in lines if text.startswith("tango r=0.1 ")]
        low, high = entry.accuracy.low, entry.accuracy.high
        assert f"{100 * entry.accuracy.value:.1f}" in line
        assert f"{100 * low:.1f} to {100 * high:.1f}" in line
        assert f"{entry.cache.hits}/40" in line
        assert line.endswith(" 6")

    @pytest.mark.parametrize("width", [80, 60, 50])
    def test_fits_a_narrow_terminal_and_keeps_names_and_scores(self, sweep, width):
        lines = render_table(sweep[0].cells, width).splitlines()
        assert max(map(len, lines)) <= width
        for entry in sweep[0].cells:
            (line,) = [text for text in lines if text.startswith(f"{entry.name} ")]
            assert f"{100 * entry.accuracy.value:.1f}" in line
            assert line.split()[-1] == str(entry.counts.num_failed)

    def test_names_benchmarks_once_and_shortens_names_that_do_not_fit(self):
        long = cell("tango", 0.1, "mvbench")
        object.__setattr__(long, "name", "tango with " + "many " * 30 + "options")
        facts = facts_of(TANGO, long)
        lines = render_table(summarize(fake_answers(facts), facts).cells).splitlines()
        assert [line for line in lines if line in ("shapes", "mvbench")] == ["shapes", "mvbench"]
        assert max(map(len, lines)) == MAX_WIDTH
        assert "…" in lines[-1]

    def test_csv_holds_unrounded_figures(self, sweep):
        rows = list(csv.DictReader(io.StringIO(cells_csv(sweep[0].cells))))
        assert [row["cell"] for row in rows] == [entry.name for entry in SWEEP]
        entry = sweep[0].cells[1]
        assert float(rows[1]["accuracy"]) == entry.accuracy.value
        assert float(rows[1]["versus_full_p"]) == entry.versus_full.paired.p_value
        assert rows[0]["versus_full"] == ""

    def test_markdown_and_latex_have_one_line_per_cell_and_equal_columns(self, sweep):
        cells = sweep[0].cells
        markdown = cells_table(cells).markdown().splitlines()
        assert len(markdown) == 2 + len(cells)
        assert len({line.count("|") for line in markdown}) == 1
        body = (
            cells_table(cells)
            .latex()
            .split("\\midrule\n")[1]
            .split("\n\\bottomrule")[0]
            .splitlines()
        )
        assert len(body) == len(cells)
        columns = markdown[0].count("|") - 1
        assert all(line.endswith(r" \\") and line.count(" & ") == columns - 1 for line in body)


class TestPlots:
    def test_are_images_and_the_themes_differ(self, sweep, tmp_path):
        drawn = {**draw_plots(sweep[0].cells), **draw_forests(sweep[0].cells)}
        save_plots(drawn, tmp_path / "plots")
        paths = list((tmp_path / "plots").iterdir())
        assert {path.name for path in paths} == {
            "differences_by_duration.png",
            "differences_by_task.png",
            "accuracy_vs_retention.png",
            "score_vs_cost.png",
            "latency.png",
        }
        dark = {**draw_plots(sweep[0].cells, DARK), **draw_forests(sweep[0].cells, DARK)}
        for path in paths:
            light = np.asarray(Image.open(path).convert("L"), float)
            assert light.mean() > 200
            assert (
                np.asarray(Image.open(io.BytesIO(dark[path.name].image)).convert("L")).mean() < 80
            )
            assert light.std() > 10

    def test_runs_with_long_names_keep_their_panel_of_bars_and_grow_the_legend(self, sweep):
        runs = [
            replace(entry, run_id=f"20260102-03040{run}-shapes-tiny-sweep-of-methods")
            for run in range(2)
            for entry in sweep[0].cells
        ]
        one, two = (draw_plots(cells) for cells in (runs[: len(runs) // 2], runs))
        for name in ("accuracy_vs_retention.png", "latency.png"):
            before, after = (Image.open(io.BytesIO(drawn[name].image)).size for drawn in (one, two))
            assert after[0] == before[0]
            assert after[1] > before[1] + 50
            image = np.asarray(Image.open(io.BytesIO(two[name].image)).convert("L"), float)
            assert image[:, -3:].min() > 250, "something reaches the right edge"

    def test_are_left_out_where_there_is_nothing_to_draw(self):
        facts = facts_of(cell("full"))
        answers = fake_answers(facts, num_clips=3)
        answers["answer"] = answers["correct"] = answers["choice"] = None
        assert set(draw_plots(summarize(answers, facts).cells)) == {"latency.png"}
