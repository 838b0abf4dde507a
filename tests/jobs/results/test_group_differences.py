"""Differences to all tokens by group, against pairs counted by hand from the answers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from fake_answers import cell, facts_of, fake_answers
from summaries import summarize

from jobs.report.tables.breakdowns import differences_csv
from jobs.results.comparisons import families_of
from tango_core.metrics import compare_paired
from tango_core.metrics.comparison import holm_adjusted

CELLS = (cell("full"), *(cell(name, share) for name in ("tango", "random") for share in (0.1, 0.2)))


@pytest.fixture(scope="module")
def answers():
    return fake_answers(facts_of(*CELLS), num_clips=60, failed_clips=(3,))


@pytest.fixture(scope="module")
def cells(answers):
    return summarize(answers, facts_of(*CELLS)).cells


def test_every_difference_is_that_of_its_questions_alone(answers, cells):
    groups = answers["groups"].map(json.loads)
    seen = 0
    for family in families_of(cells):
        values = groups.map(lambda own, name=family.group: own[name])
        for member in family.members:
            ours, full = (
                answers[(values == member.value) & (answers["cell"] == name)].sort_values(
                    "question_id"
                )
                for name in (member.cell.name, "full")
            )
            right = [one["correct"].to_numpy(bool) for one in (ours, full)]
            wanted = compare_paired(*right, ours["video_id"].to_numpy())
            for name, value in vars(wanted).items():
                assert getattr(member.paired, name) == pytest.approx(value), name
            seen += 1
    assert seen == 4 * (3 + 2)


def test_a_group_is_one_family_and_holm_counts_all_of_its_comparisons(cells):
    families = {family.group: family for family in families_of(cells)}
    assert set(families) == {"duration", "task"}
    for family in families.values():
        adjusted = holm_adjusted([member.paired.p_value for member in family.members])
        assert [member.p_value for member in family.members] == adjusted
        assert family.num_surviving == sum(np.array(adjusted) < 0.05)
    # There is one that the correction takes away, and one that it leaves.
    members = [member for family in families.values() for member in family.members]
    assert any(member.paired.p_value < 0.05 <= member.p_value for member in members)
    assert any(member.survives for member in members)


def test_cells_without_a_comparison_are_left_out(cells):
    assert {member.cell.name for family in families_of(cells) for member in family.members} == {
        one.name for one in cells if one.name != "full"
    }
    assert families_of([replace(one, versus_full=None) for one in cells]) == []
    assert differences_csv(cells[:1]) == ""


def test_the_table_has_a_row_each(cells):
    header, *rows = differences_csv(cells).splitlines()
    assert len(rows) == 4 * (3 + 2)
    first = dict(zip(header.split(","), rows[0].split(","), strict=True))
    member = families_of(cells)[0].members[0]
    assert (first["cell"], first["group"], first["value"]) == ("tango r=0.1", "duration", "long")
    assert float(first["difference"]) == member.paired.difference
    assert float(first["p_value_holm"]) == member.p_value
    assert first["num_comparisons"] == "12"
