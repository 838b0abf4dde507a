"""Unread replies are visible in every table, and methods are not ranked where they are many."""

import json

import pytest
from fake_answers import cell, facts_of, fake_answers
from summaries import summarize

from jobs.report.tables.cells import render_table
from jobs.results.cell_summary import RunSummary
from jobs.results.quantities import are_ranked, rule_notes, unread_notes

FACTS = facts_of(cell("full"), cell("tango", 0.1))


def summary_with(unparsed, rule="letter"):
    answers = fake_answers(FACTS, unparsed=unparsed)
    unread = answers["status"] == "unparsed"
    answers["text"] = [
        ("sand" if n % 3 else "desert") if it else "B" for n, it in enumerate(unread)
    ]
    answers["reading_rule"] = [None if it else rule for it in unread]
    return summarize(answers, FACTS)


@pytest.mark.parametrize(("unparsed", "shown", "ranked"), [(0, 0, 1), (0.05, 1, 1), (0.6, 1, 0)])
def test_a_column_from_1_percent_and_no_ranking_from_20_percent(unparsed, shown, ranked):
    summary = summary_with(unparsed)
    assert ("unread %" in render_table(summary.cells, None)) == shown
    assert are_ranked(summary.cells) == ranked
    notes = unread_notes(summary.cells)
    assert len(notes) == (not ranked)
    examples = ('such as "desert" and "sand"', 'such as "sand" and "desert"')
    assert all(any(text in note for text in examples) for note in notes)


def test_summary_json_has_the_share_and_the_rules(tmp_path):
    summary = summary_with(0.5)
    data = json.loads(json.dumps(summary.to_json()))
    for one in data["cells"]:
        replies = one["num_answered"] + one["num_unparsed"]
        assert one["unread_share"] == one["num_unparsed"] / replies > 0.4
        assert one["readings"]["rules"] == {"letter": one["num_answered"]}
    read = RunSummary.from_json(data).cells
    assert [one.readings for one in read] == [one.readings for one in summary.cells]
    for one in data["cells"]:
        del one["readings"], one["unread_share"]  # as version 0.1 wrote it
    assert RunSummary.from_json(data).cells[0].readings.rules == {}


def test_the_report_names_the_rules_where_there_are_several():
    one, other = summary_with(0), summary_with(0, rule="mention")
    assert rule_notes(one.cells) == []
    (note,) = rule_notes([*one.cells, *other.cells])
    assert "by letter" in note
    assert "by mention" in note
