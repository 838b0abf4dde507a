"""The layout of papers: what stands in it, counted by hand."""

import csv
import io

import pytest
from fake_answers import facts_of, fake_answers, write_run
from paper_cells import FOUR, FULL, TANGO, cells_of, half_as_good, real_cell, under

from jobs.report.compare import report_runs
from jobs.report.tables.paper import AVERAGE, SHARE, paper_table


class TestLayout:
    def test_averages_are_those_of_the_benchmarks_and_perf_is_the_share_of_full(self):
        cells = cells_of(("tango", 0.2, {}), TANGO, FULL)
        table = paper_table(cells)
        scores = {(entry.name, entry.benchmark): entry.accuracy.value for entry in cells}
        mean = {
            name: sum(scores[name, b] for b in FOUR) / 4
            for name in ("full", "tango r=0.1", "tango r=0.2")
        }
        full, low, high = table.rows
        assert [row.retention for row in table.rows] == [1.0, 0.1, 0.2]
        for row, name in ((full, "full"), (low, "tango r=0.1"), (high, "tango r=0.2")):
            assert row.values[AVERAGE] == pytest.approx(mean[name])
            assert row.values[SHARE] == pytest.approx(mean[name] / mean["full"])

    def test_video_mme_is_split_by_length_as_in_the_paper(self):
        cells = cells_of(FULL)
        table = paper_table(cells)
        assert [column for column in table.columns if column[0] == "videomme"] == [
            ("videomme", part) for part in ("short", "medium", "long", "overall")
        ]
        by = cells[0].headline_by["duration"]
        for part in ("short", "medium", "long"):
            assert table.rows[0].values["videomme", part] == by[part].value

    def test_a_second_run_of_the_same_is_another_row_under_its_name(self):
        again = cells_of(FULL, TANGO, run_id="b")
        table = paper_table([*cells_of(FULL, TANGO), *again])
        assert [row.method for row in table.rows] == ["full", "full (b)", "tango", "tango (b)"]

    def test_other_frames_are_other_rows_with_their_own_full_run(self):
        few = cells_of(FULL, TANGO, benchmarks=["shapes"], num_frames=8)
        many = half_as_good(cells_of(FULL, TANGO, benchmarks=["shapes"], num_frames=64))
        table = paper_table([*few, *many])
        shares = [row.values[SHARE] for row in table.rows]
        assert shares[0] == shares[2] == 1
        assert shares[1] == pytest.approx(shares[3])
        assert {row.model for row in table.rows} == {
            "llava-onevision-7b, 8 frames",
            "llava-onevision-7b, 64 frames",
        }

    def test_other_protocols_are_other_rows_with_their_own_full_run(self):
        ours = under("vlmevalkit", cells_of(FULL, TANGO))
        theirs = half_as_good(under("lmms_eval", cells_of(FULL, TANGO)))
        table = paper_table([*ours, *theirs])
        assert [row.protocol for row in table.rows] == ["vlmevalkit"] * 2 + ["lmms_eval"] * 2
        shares = [row.values[SHARE] for row in table.rows]
        assert shares[0] == shares[2] == 1
        assert shares[1] == pytest.approx(shares[3])
        header, _, first, *_, last = table.markdown().splitlines()
        assert header.startswith("| Protocol | Method |")
        assert (first.split(" | ")[0], last.split(" | ")[0]) == ("| vlmevalkit", "| lmms_eval")
        rows = list(csv.DictReader(io.StringIO(table.csv())))
        assert [row["protocol"] for row in rows] == [row.protocol for row in table.rows]
        assert table.latex().count("\\midrule") == 4
        lines = [line for line in table.latex().splitlines() if line.endswith(r"\\")]
        assert lines[1].startswith("Protocol & Method & ")

    def test_benchmarks_of_one_protocol_share_a_row_whatever_it_is_called_there(self):
        cells = [
            *under("lmms_eval_llava_vid", cells_of(FULL, benchmarks=["videomme"])),
            *under("lmms_eval", cells_of(FULL, benchmarks=["mvbench"])),
            *under("shapes", cells_of(FULL, benchmarks=["shapes"])),
            *under("", cells_of(FULL, benchmarks=["mlvu"])),
        ]
        (row,) = paper_table(cells).rows
        assert None not in row.values.values()
        assert "Protocol" not in paper_table(cells).markdown()
        assert "protocol" not in paper_table(cells).csv()


class TestForms:
    @pytest.fixture
    def table(self):
        return paper_table(cells_of(FULL, TANGO, ("tango", 0.12, {})), published=True)

    def test_csv_holds_unrounded_shares(self, table):
        rows = list(csv.DictReader(io.StringIO(table.csv())))
        assert float(rows[1]["average"]) == table.rows[1].values[AVERAGE]
        assert float(rows[1]["videomme_long"]) == table.rows[1].values["videomme", "long"]
        assert float(rows[1]["videomme_long_published"]) == pytest.approx(0.498)
        assert rows[2]["videomme_long_published"] == ""

    def test_markdown_and_latex_lines_have_equal_columns(self, table):
        lines = table.markdown().split("\n\n")[0].splitlines()
        assert len({line.count("|") for line in lines}) == 1
        latex = table.latex().splitlines()
        body = [line for line in latex if line.endswith(r"\\")]
        spans = [4 if "multicolumn{4}" in line else 1 for line in body]
        assert len({line.count(" & ") + span for line, span in zip(body, spans, strict=True)}) == 1
        assert latex[0].count("r") - "tabular".count("r") == len(table.columns) + 2
        assert latex.count("\\midrule") == 3

    def test_published_numbers_stand_in_brackets_with_their_source(self, table):
        text = table.markdown()
        shown = f"{100 * table.rows[1].values['mvbench', 'overall']:.1f} (55.4)"
        assert shown in text
        assert "arXiv:2604.09547" in text
        assert shown in table.latex()


def test_report_writes_the_layout_and_all_break_downs(tmp_path):
    entries = [real_cell(m, r, b) for b in ("videomme", "mlvu") for m, r, _ in (FULL, TANGO)]
    facts = facts_of(*entries, run_id="run", num_frames=32)
    run = write_run(tmp_path / "run", fake_answers(facts), facts)
    report_runs([run], published=True)
    rows = list(csv.DictReader((run / "paper_table.csv").open()))
    assert [row["method"] for row in rows] == ["full", "tango"]
    assert float(rows[1]["mlvu_overall_published"]) == pytest.approx(0.635)
    assert "videomme 120 of 2,700 questions" in (run / "paper_table.md").read_text()
    lines = list(csv.DictReader((run / "breakdowns.csv").open()))
    short = [r for r in lines if (r["benchmark"], r["value"]) == ("videomme", "short")]
    assert {row["cell"] for row in short} == {"full", "tango r=0.1"}
    with_ends = [row for row in lines if row["value"] != "mean (M-Avg)"]
    assert all(float(row["accuracy_low"]) <= float(row["accuracy"]) for row in with_ends)
