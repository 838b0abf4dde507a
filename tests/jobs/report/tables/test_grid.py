"""Methods down, retentions across."""

from fake_answers import cell, facts_of, fake_answers
from summaries import summarize

from jobs.report.tables.cells import grid_markdown

CELLS = (cell("full"), cell("topk", 0.1), cell("tango", 0.1), cell("tango", 0.2))


def grid_of(*cells):
    facts = facts_of(*cells)
    found = summarize(fake_answers(facts), facts).cells
    return found, grid_markdown(found)


def lines_of(text, title):
    """Rows of one table, split into cells."""
    table = text.split(title)[1].split("\n\n")[1]
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


def test_a_line_per_method_and_a_column_per_retention():
    found, text = grid_of(*CELLS)
    head, _, *lines = lines_of(text, "### Accuracy")
    assert head == ["method", "10 %", "20 %", "100 %"]
    assert [line[0] for line in lines] == ["full", "topk", "tango"]
    kept = 100 * found[2].equivalent_retention
    assert lines[2][1] == f"{100 * found[2].accuracy.value:.1f} ({kept:.1f})"
    assert lines[1][2:] == ["-", "-"]


def test_differences_leave_out_what_has_none():
    found, text = grid_of(*CELLS)
    head, _, *lines = lines_of(text, "### Difference to `full`")
    assert head == ["method", "10 %", "20 %"]
    assert [line[0] for line in lines] == ["topk", "tango"]
    assert found[1].versus_full.paired.p_value < 0.001
    paired = found[1].versus_full.paired
    assert lines[0][1].endswith(f"), p<0.001, detectable {100 * paired.detectable_difference:.1f}")
    assert f"p={found[2].versus_full.paired.p_value:.2g}" in lines[1][1]
