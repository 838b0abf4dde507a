"""The layout of papers: what stands in it, counted by hand, and what is published beside it."""

import csv
import io
import json
from dataclasses import replace
from functools import cache
from importlib import import_module

import pytest
import yaml
from fake_answers import cell, facts_of, fake_answers, write_run

import jobs.published
from jobs.compare import report_runs
from jobs.paper_layout import AVERAGE, SHARE
from jobs.paper_table import paper_table
from jobs.published import published_scores
from jobs.summary import summarize
from tango_core.benchmarks import BENCHMARKS
from tango_core.compressors import build_method
from tango_core.models import MODELS

FOUR = ("videomme", "mvbench", "longvideobench", "mlvu")


def real_cell(method, retention, benchmark, **options):
    """A cell with all options resolved, as a job records them."""
    given = {} if method == "full" else {"retention": retention}
    resolved = dict(build_method(method, **given, **options).options)
    resolved.pop("retention", None)
    entry = cell(method, retention, benchmark, **resolved)
    named = [f"{key}={value}" for key, value in options.items() if key != "inner"]
    named += ["inner=step"] if "inner" in options else []
    return replace(entry, name=" ".join([entry.name, *named]), layer_shares=None)


def cells_of(*methods, benchmarks=FOUR, **facts):
    """Summaries of a sweep of (method, retention, options) over benchmarks."""
    return json.loads(_cells(json.dumps([methods, benchmarks, facts])))


@cache
def _cells(question):
    """The same question is asked by several tests."""
    methods, benchmarks, facts = json.loads(question)
    run_id = facts.pop("run_id", "a")
    entries = [real_cell(m, r, b, **o) for b in benchmarks for m, r, o in methods]
    about = facts_of(*entries, run_id=run_id, **{"num_frames": 32, **facts})
    own = {"run_id": run_id, "model": about.model, "num_frames": about.num_frames}
    found = summarize(fake_answers(about, num_clips=24), about)["cells"]
    return json.dumps([{**entry, **own} for entry in found])


def under(protocol, cells):
    """The same cells, asked under a protocol."""
    return [{**entry, "protocol": protocol} for entry in cells]


def complete(cells):
    """The same cells, as if all questions of their benchmarks had been asked."""
    asked = published_file()["questions"]
    return [{**entry, "num_questions": asked[entry["benchmark"]]} for entry in cells]


def published_file():
    path = jobs.published.files("jobs") / "published.yaml"
    return yaml.safe_load(path.read_text())


FULL, TANGO = ("full", 1.0, {}), ("tango", 0.1, {})


class TestLayout:
    def test_averages_are_those_of_the_benchmarks_and_perf_is_the_share_of_full(self):
        cells = cells_of(("tango", 0.2, {}), TANGO, FULL)
        table = paper_table(cells)
        scores = {(entry["cell"], entry["benchmark"]): entry["accuracy"] for entry in cells}
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
        by = cells[0]["accuracy_by"]["duration"]
        for part in ("short", "medium", "long"):
            assert table.rows[0].values["videomme", part] == by[part]["accuracy"]

    def test_benchmarks_of_several_runs_share_a_row(self):
        runs = [cells_of(FULL, TANGO, benchmarks=[b], run_id=b) for b in FOUR]
        apart = paper_table([entry for run in runs for entry in run])
        together = paper_table(cells_of(FULL, TANGO))
        assert [row.values for row in apart.rows] == [row.values for row in together.rows]

    def test_a_second_run_of_the_same_is_another_row_under_its_name(self):
        again = cells_of(FULL, TANGO, run_id="b")
        table = paper_table([*cells_of(FULL, TANGO), *again])
        assert [row.method for row in table.rows] == ["full", "full (b)", "tango", "tango (b)"]

    def test_other_frames_are_other_rows_with_their_own_full_run(self):
        few = cells_of(FULL, TANGO, benchmarks=["shapes"], num_frames=8)
        many = cells_of(FULL, TANGO, benchmarks=["shapes"], num_frames=64)
        for entry in many:
            entry["accuracy"] /= 2
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
        theirs = under("lmms_eval", cells_of(FULL, TANGO))
        for entry in theirs:
            entry["accuracy"] /= 2
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

    def test_a_row_that_misses_a_benchmark_has_no_average(self):
        table = paper_table([*cells_of(FULL), *cells_of(TANGO, benchmarks=FOUR[:2])])
        tango = table.rows[1]
        assert tango.values["mvbench", "overall"] is not None
        assert tango.values[AVERAGE] is tango.values[SHARE] is None
        assert table.markdown().splitlines()[3].endswith("| - | - |")

    def test_options_name_the_row(self):
        table = paper_table(cells_of(FULL, TANGO, ("tango", 0.1, {"st_rope": False})))
        assert [row.method for row in table.rows] == ["full", "tango", "tango st_rope=False"]


class TestForms:
    @pytest.fixture
    def table(self):
        return paper_table(cells_of(FULL, TANGO, ("tango", 0.2, {})), published=True)

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

    def test_without_them_nothing_is_said(self):
        text = paper_table(cells_of(FULL, TANGO)).markdown()
        assert "(" not in text


class TestPublished:
    def test_shares_of_the_full_run_are_those_the_paper_states(self):
        """98.9 % at 10 % and 99.7 % at 20 %, from the abstract and the text of the paper."""
        table = paper_table(cells_of(FULL, TANGO, ("tango", 0.2, {})), published=True)
        shares = [f"{100 * row.published[SHARE]:.1f}" for row in table.rows]
        assert shares == ["100.0", "98.9", "99.7"]

    @pytest.mark.parametrize(
        ("change", "found"),
        [
            ({}, True),
            ({"legacy_writeback": True}, True),
            ({"st_rope": False}, False),
            ({"inner": {"name": "fastv-merge", "layer": 18, "retention": 0.5}}, False),
        ],
    )
    def test_only_the_published_setting_gets_them(self, change, found):
        (entry,) = cells_of(("tango", 0.1, change), benchmarks=["mvbench"])
        assert bool(published_scores(entry)) is found

    def test_llava_video_is_published_with_the_step_inside(self):
        inner = {"name": "fastv-merge", "layer": 18, "retention": 0.5}
        about = {"benchmarks": ["mlvu"], "model": "llava-video-7b", "num_frames": 64}
        (hybrid,) = cells_of(("tango", 0.1, {"inner": inner}), **about)
        (plain,) = cells_of(TANGO, **about)
        assert published_scores(hybrid)["mlvu"] == {"overall": pytest.approx(0.667)}
        assert published_scores(plain) == {}

    def test_other_frames_methods_and_imported_names_get_none(self):
        (other,) = cells_of(TANGO, benchmarks=["mvbench"], num_frames=16)
        assert published_scores(other) == {}
        assert published_scores({**other, "num_frames": 32, "method": "their model"}) == {}
        assert published_scores({**other, "num_frames": 32, "retention_requested": 0.12}) == {}

    @pytest.mark.parametrize(
        ("protocol", "found"), [("vlmevalkit", True), ("", True), ("lmms_eval", False)]
    )
    def test_numbers_made_with_other_prompts_get_none(self, protocol, found):
        (entry,) = cells_of(TANGO, benchmarks=["mvbench"])
        assert bool(published_scores({**entry, "protocol": protocol})) is found

    def test_a_part_of_the_questions_is_not_comparable_and_says_so(self):
        cells = cells_of(FULL, TANGO)
        cells[0]["num_questions"] = 300
        note = (
            "Ours and the published numbers are not comparable, which are of complete benchmarks: "
            "videomme 72 of 2,700 questions, mvbench 72 of 4,000 questions, longvideobench 72 of "
            "1,337 questions, mlvu 72 of 2,174 questions."
        )
        table = paper_table(cells, published=True)
        assert table.notes == (note,)
        assert table.markdown().endswith(f"\n\n{note}")
        assert table.latex().endswith(f"\n% {note}")
        assert paper_table(cells).notes == ()
        assert paper_table(complete(cells), published=True).notes == ()

    @pytest.mark.parametrize(
        ("change", "note"),
        [
            ({"model": "tiny"}, "Nothing is published for model tiny."),
            (
                {"protocol": "lmms_eval"},
                "Nothing published stands beside llava-onevision-7b under lmms_eval: the "
                "published numbers are made under vlmevalkit.",
            ),
            (
                {"decoder_shape": (24, 896)},
                "Nothing published stands beside llava-onevision-7b of 24 layers of width 896: "
                "the published has 28 layers of width 3584.",
            ),
            (
                {"num_frames": 8},
                "Nothing published stands beside llava-onevision-7b with 8 frames: the published "
                "has 32.",
            ),
        ],
    )
    def test_another_setting_than_the_published_one_is_named(self, change, note):
        cells = [{**entry, **change} for entry in complete(cells_of(FULL, TANGO))]
        table = paper_table(cells, published=True)
        assert table.notes == (note,)
        assert all(not row.published for row in table.rows)
        same = [{**entry, "decoder_shape": (28, 3584)} for entry in complete(cells_of(FULL))]
        assert paper_table(same, published=True).notes == ()

    def test_complete_is_what_the_benchmarks_hold(self):
        for name, asked in published_file()["questions"].items():
            module, attribute = BENCHMARKS[name].split(":")
            assert getattr(import_module(module), attribute).num_questions == asked

    def test_every_row_names_things_that_exist(self):
        rows = published_file()["rows"]
        for row in rows:
            assert row["model"] in MODELS
            assert set(row["scores"]) <= set(BENCHMARKS)
            given = {"retention": row["retention"]} if "retention" in row else {}
            build_method(row["method"], **given)
            assert all(
                25 < score < 80 for columns in row["scores"].values() for score in columns.values()
            )


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
