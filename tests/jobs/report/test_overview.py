"""The first answers of a report: what is best, which differences are significant, faults."""

import html

import pytest
from fake_answers import cell, facts_of, fake_answers, write_run
from report_page import Page

from jobs.report.compare import compared_runs, report_runs
from jobs.report.page import Contents, overview_of
from jobs.results.comparisons import against_controls

CELLS = [
    cell("full"),
    *(cell(name, share) for share in (0.1, 0.2) for name in ("random", "tango", "topk")),
]
# Share of the questions that are wrong, by method; the others are right.
WRONG = {"random": 0.6, "tango": 0.02, "topk": 0.04}


def run_of(folder, cells=CELLS, wrong=WRONG, **made):
    """A run in which a share of the questions is wrong, by method."""
    facts = facts_of(*cells)
    answers = fake_answers(facts, **{"unparsed": 0, **made})
    number = answers.groupby("cell").cumcount()
    answers["correct"] = [
        n % 100 >= 100 * wrong.get(method, 0)
        for n, method in zip(number, answers["method"], strict=True)
    ]
    return write_run(folder / "run", answers, facts)


@pytest.fixture
def answered(tmp_path_factory):
    def make(cells=CELLS, **made):
        found = compared_runs([run_of(tmp_path_factory.mktemp("run"), cells, **made)])
        controlled = against_controls(found.cells, found.answers)
        summary, facts = found.summary_and_facts(several=False)
        given = {"answers": found.answers, "controlled": controlled}
        return overview_of(Contents(summary, facts, {}, found.notes, **given))

    return make


def test_the_best_method_of_every_retention_is_named_with_its_cost_and_never_a_control(answered):
    full, low, high = answered()["best"]
    assert full.startswith("<b>All tokens (full)</b>, 100.0 % right, ")
    for sentence, share in ((low, 10), (high, 20)):
        assert sentence.startswith(f"{share} % of the tokens: <b>tango</b>, 96.7 % right, ")
        assert sentence.endswith(" ms to the first token")


def test_a_difference_is_called_significant_only_with_a_small_corrected_p(answered):
    low, high = answered()["differences"]
    control = "63.3 points ahead of random, the best control (significant after Holm's correction)"
    assert low.startswith("10 %: <b>tango</b> is ")
    assert html.unescape(low).count(control) == 1
    other = "no difference shown: <b>tango</b> is 3.3 points ahead of topk; 3.3 points behind full"
    assert low.endswith(other)
    assert high.startswith("20 %: <b>tango</b> is ")


def test_controls_are_best_where_there_is_nothing_else(answered):
    assert "<b>random</b>" in answered(cells=CELLS[:2])["best"][1]


def test_what_is_wrong_is_listed_only_if_something_is(answered):
    assert answered()["wrong"] == []
    (failed,) = answered(failed_clips=(1, 2))["wrong"]
    assert failed == "42 answers failed, about 2 of 40 clips, and count as wrong."


def test_methods_whose_replies_cannot_be_read_are_not_ranked(answered):
    found = answered(unparsed=0.5)
    assert found["best"] == ["Methods are not ranked, because too few replies could be read."]
    assert found["differences"] == []


def test_a_sentence_per_retention_names_who_beats_the_best_control(tmp_path):
    cells = [
        cell("full"),
        *(cell(name, 0.1) for name in ("random", "fewer_frames", "tango", "topk")),
    ]
    wrong = {"random": 0.5, "fewer_frames": 0.4, "topk": 0.4, "tango": 0.02}
    page = report_runs([run_of(tmp_path, cells, wrong)], tmp_path / "out")
    words = Page(page.read_text()).words
    assert "At 10 % the best control is fewer_frames" in words
    assert "Better than it: tango (+" in words
    assert "No difference shown: topk (" in words
    table = (tmp_path / "out" / "controls.md").read_text()
    assert table.startswith("At 10 % the best control")
    assert "| shapes | 10 | fewer_frames |" in table
    assert "where the control fails" in table
