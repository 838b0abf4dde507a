"""Differences to all tokens by group, against pairs counted by hand from the answers."""

import json
from dataclasses import replace

import pytest
from fake_answers import cell, facts_of, fake_answers
from summaries import summarize

from jobs.report.tables.breakdowns import breakdown_files, differences
from jobs.results.comparisons import differences_by_group
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
    found = differences_by_group(cells)
    for row in found.itertuples():
        own = groups.map(lambda names, name=row.group: names[name]) == row.value
        ours, full = (
            answers[own & (answers["cell"] == name)].sort_values("question_id")
            for name in (row.cell, "full")
        )
        right = [one["correct"].to_numpy(bool) for one in (ours, full)]
        wanted = compare_paired(*right, ours["video_id"].to_numpy())
        assert row.difference == pytest.approx(wanted.difference)
        assert row.difference_high == pytest.approx(wanted.high)
        assert row.p_value == pytest.approx(wanted.p_value)
        assert (row.num_gained, row.num_clips) == (wanted.num_gained, wanted.num_clips)
    assert len(found) == 4 * (3 + 2)
    assert set(found["cell"]) == {one.name for one in cells if one.name != "full"}


def test_a_group_is_one_family_and_holm_counts_all_of_its_comparisons(cells):
    found = differences_by_group(cells)
    for group, own in found.groupby("group"):
        assert list(own["p_value_holm"]) == holm_adjusted(list(own["p_value"])), group
        assert set(own["num_comparisons"]) == {len(own)}
    # There is one that the correction takes away, and one that it leaves.
    assert ((found["p_value"] < 0.05) & (found["p_value_holm"] >= 0.05)).any()
    assert (found["p_value_holm"] < 0.05).any()


def test_cells_without_a_comparison_are_left_out(cells):
    assert differences_by_group([replace(one, versus_full=None) for one in cells]).empty
    assert "differences_by_group.csv" not in breakdown_files(cells[:1])


def test_the_file_has_a_row_each(cells):
    header, *rows = breakdown_files(cells)["differences_by_group.csv"].splitlines()
    assert len(rows) == 4 * (3 + 2)
    first = dict(zip(header.split(","), rows[0].split(","), strict=True))
    expected = differences_by_group(cells).iloc[0]
    assert (first["cell"], first["group"], first["value"]) == ("tango r=0.1", "duration", "long")
    assert float(first["p_value_holm"]) == expected["p_value_holm"]
    assert first["num_comparisons"] == "12"


def test_the_page_has_a_table_per_group_with_what_is_significant(cells):
    (title, table), _ = differences(cells)
    own = differences_by_group(cells).query("group == 'duration'")
    number = (own["p_value_holm"] < 0.05).sum()
    assert title == (
        f"shapes, accuracy, duration: 12 comparisons, {number} significant after Holm's correction"
    )
    assert [row[:2] for row in table.rows] == own[["cell", "value"]].to_numpy().tolist()
