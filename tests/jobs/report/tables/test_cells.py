"""Tables of a run: what a reader sees is what the summary holds."""

import csv
import io

import pytest
from fake_answers import cell, facts_of, fake_answers
from report_page import SWEEP, TANGO
from summaries import summarize

from jobs.report.tables.cells import MAX_WIDTH, cells_csv, render_table


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
        assert f"{entry.cache.hits}/40" in render_table(sweep[0].cells, 2 * MAX_WIDTH)
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
