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
