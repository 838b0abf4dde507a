"""What a report says about methods and controls."""

from fake_answers import cell, facts_of, fake_answers, write_run
from report_page import Page

from jobs.report.compare import report_runs

CELLS = [
    cell("full"),
    cell("random", 0.1),
    cell("fewer_frames", 0.1),
    cell("tango", 0.1),
    cell("topk", 0.1),
]


def _run(folder, cells, wrong):
    """A run in which a share of the questions is wrong, by method; the others are right."""
    facts = facts_of(*cells)
    answers = fake_answers(facts)
    number = answers.groupby("cell").cumcount()
    answers["correct"] = [
        n % 100 >= 100 * wrong.get(method, 0)
        for n, method in zip(number, answers["method"], strict=True)
    ]
    return write_run(folder, answers, facts)


def test_a_sentence_per_retention_names_who_beats_the_best_control(tmp_path):
    wrong = {"random": 0.5, "fewer_frames": 0.4, "topk": 0.4, "tango": 0.02}
    run = _run(tmp_path / "run", CELLS, wrong)
    page = report_runs([run], tmp_path / "out")
    words = Page(page.read_text()).words
    assert "At 10 % the best control is fewer_frames" in words
    assert "Better than it: tango (+" in words
    assert "No difference shown: topk (" in words
    table = (tmp_path / "out" / "controls.md").read_text()
    assert table.startswith("At 10 % the best control")
    assert "| shapes | 10 | fewer_frames |" in table
    assert "where the control fails" in table


def test_a_run_of_a_smaller_input_is_a_control_of_another_run(tmp_path):
    run = _run(tmp_path / "run", [CELLS[0], cell("tango", 0.25)], {"tango": 0.02})
    facts = facts_of(CELLS[0], run_id="smaller", input_size="pooling_step=4")
    answers = fake_answers(facts)
    answers["tokens_total"] = answers["tokens_kept"] = answers["tokens_total"] // 4
    answers["correct"] = [number % 2 == 0 for number in range(len(answers))]
    smaller = write_run(tmp_path / "smaller", answers, facts)
    page = report_runs([run, smaller], tmp_path / "out")
    words = Page(page.read_text()).words
    assert "At 25 % the best control is full pooling_step=4 (" in words
    assert "% right with 25.0 % of the tokens of the whole input)" in words
    assert "Better than it: tango (+" in words
    # All tokens of the smaller input are no reference of the others, and no row of theirs.
    paper = (tmp_path / "out" / "paper_table.md").read_text()
    assert "llava-onevision-7b, pooling_step=4" in paper
