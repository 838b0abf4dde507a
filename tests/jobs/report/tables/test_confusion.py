"""What is mistaken for what."""

from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from fake_answers import cell, facts_of, fake_answers, write_run
from summaries import summarize

from jobs.report.compare import report_runs
from jobs.report.tables.breakdowns import NO_OPTION, confusion_markdown, confusion_table


def rows_of(*answers):
    """Rows of one cell from (type, right, reply); `None` as the reply is one without an option."""
    return pd.DataFrame(
        {
            "benchmark": "shapes",
            "video_id": [f"v{number // 2}" for number in range(len(answers))],
            "question_id": [f"q{number}" for number in range(len(answers))],
            "groups": [f'{{"type": "{kind}"}}' for kind, _, _ in answers],
            "status": ["ok" if reply else "unparsed" for _, _, reply in answers],
            "answer_text": [right for _, right, _ in answers],
            "choice_text": [reply for _, _, reply in answers],
        }
    )


def confusions(parts, group):
    """The table of some cells of a run: name and rows of each."""
    cells = [replace(cell("full"), name=name) for name, _ in parts]
    rows = pd.concat([rows.assign(cell=name) for name, rows in parts], ignore_index=True)
    table = pa.Table.from_pandas(rows, preserve_index=False)
    return confusion_table(summarize(rows, facts_of(*cells)).cells, [[table]], group)


FULL = rows_of(
    ("digit", "9", "2"),
    ("digit", "9", "2"),
    ("digit", "9", "9"),
    ("digit", "8", None),
    ("color", "red", "red"),
)


def test_counts_every_pair_and_replies_without_an_option():
    table = confusions([("full", FULL)], "type")
    assert [list(row) for row in table.rows] == [
        ["full", "color", "red", "red", 1],
        ["full", "digit", "9", "2", 2],
        ["full", "digit", "8", NO_OPTION, 1],
        ["full", "digit", "9", "9", 1],
    ]


def test_a_line_per_cell_shows_wrong_of_asked_and_the_most_frequent_mistakes():
    better = rows_of(("digit", "9", "9"), ("color", "red", "red"))
    table = confusions([("full", FULL), ("better", better)], "type")
    lines = confusion_markdown(table, "type").splitlines()
    assert lines[2:] == [
        "| cell | color | digit |",
        "| --- | ---: | ---: |",
        "| full | 0 of 1 | 3 of 4: 9 → 2 2, 8 → no option 1 |",
        "| better | 0 of 1 | 0 of 1 |",
    ]


def test_an_unknown_group_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=r"'kind' is no group of these questions; .*type"):
        confusions([("full", FULL)], "kind")


def test_a_report_writes_both_forms(tmp_path):
    facts = facts_of(cell("full"), cell("tango", 0.1))
    answers = fake_answers(facts, unparsed=0)
    named = answers.assign(
        answer_text=["red" if right else "blue" for right in answers["answer"] % 2],
        choice_text=["red" if right else "blue" for right in answers["choice"] % 2],
    )
    run = write_run(tmp_path / "run", named, facts)
    report_runs([run], tmp_path / "out", confusion="task")
    table = pd.read_csv(tmp_path / "out" / "confusion.csv")
    assert table["count"].sum() == len(answers)
    assert set(table["cell"]) == {"full", "tango r=0.1"}
    assert "| tango r=0.1 |" in (tmp_path / "out" / "confusion.md").read_text()
