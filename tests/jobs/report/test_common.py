"""Runs that were asked different questions."""

import pytest
from fake_answers import cell, facts_of, fake_answers, write_run
from merged_runs import report
from report_page import TANGO

from jobs.report.compare import report_runs

CELLS = (cell("full"), TANGO)


@pytest.fixture
def run(tmp_path):
    """`run(name, clips)` is a run over these clips."""

    def make(name, clips, cells=CELLS):
        facts = facts_of(*cells, run_id=name)
        answers = fake_answers(facts, num_clips=36)
        number = answers["video_id"].str[-4:].astype(int)
        return write_run(tmp_path / name, answers[number.isin(clips)], facts)

    return make


def test_runs_are_compared_on_their_common_questions(run, tmp_path):
    runs = [run("a", range(36)), run("b", range(10)), run("c", range(4, 16))]
    summary, words, table = report(runs, tmp_path / "out")
    sentence = (
        "Compared on the 18 questions of shapes that all 3 runs were asked; left out: 90 of a, 12 "
        "of b, 18 of c."
    )
    assert sentence in words
    assert sentence in table
    assert {entry["num_questions"] for entry in summary["cells"]} == {18}
    assert {entry["num_clips"] for entry in summary["cells"]} == {6}
    assert len({entry["accuracy"] for entry in summary["cells"] if entry["cell"] == "full"}) == 1
    assert len({entry["tokens_total"] for entry in summary["cells"]}) == 1


def test_on_all_says_that_questions_differ_and_prints_no_share_between_them(run, tmp_path):
    runs = [run("a", range(36), cells=(cell("full"),)), run("b", range(10), cells=(TANGO,))]
    summary, words, table = report(runs, tmp_path / "out", on="all")
    sentence = "asked different questions of shapes: 108 in a, 30 in b; 30 are in all of them."
    assert sentence in words
    assert sentence in table
    assert [entry["num_questions"] for entry in summary["cells"]] == [108, 30]
    assert summary["cells"][1]["versus_full"]["num_questions"] == 30
    share = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in table.splitlines()
             if line.startswith("| ")}  # fmt: skip
    assert share["full"] == "100.0"
    assert share["tango"] == "-"
    assert "Perf. % is left out" in words
    _, _, table = report(runs, tmp_path / "common")
    assert "| tango | 10 |" in table
    assert " - |" not in table


def test_runs_without_a_common_question_are_refused_in_one_line(run, tmp_path):
    runs = [run("a", range(8)), run("b", range(8, 16))]
    with pytest.raises(ValueError, match="a, b have no question of shapes in common") as error:
        report_runs(runs, tmp_path / "out")
    assert "--on all" in str(error.value)
    assert "\n" not in str(error.value)
