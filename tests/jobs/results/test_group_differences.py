"""Differences to all tokens by group, against pairs counted by hand from the answers."""

import json

import pytest
from fake_answers import cell, facts_of, fake_answers
from summaries import summarize

from tango_core.metrics import compare_paired

CELLS = (cell("full"), *(cell(name, share) for name in ("tango", "random") for share in (0.1, 0.2)))


def test_every_difference_is_that_of_its_questions_alone():
    answers = fake_answers(facts_of(*CELLS), num_clips=60, failed_clips=(3,))
    groups = answers["groups"].map(json.loads)
    number = 0
    for one in summarize(answers, facts_of(*CELLS)).cells[1:]:
        for group, values in one.versus_full.by_group["accuracy"].items():
            for value, found in values.items():
                own = groups.map(lambda names, group=group: names[group]) == value
                ours, full = (
                    answers[own & (answers["cell"] == name)].sort_values("question_id")
                    for name in (one.name, "full")
                )
                right = [rows["correct"].to_numpy(bool) for rows in (ours, full)]
                wanted = compare_paired(*right, ours["video_id"].to_numpy())
                assert found.difference == pytest.approx(wanted.difference)
                assert found.high == pytest.approx(wanted.high)
                assert found.p_value == pytest.approx(wanted.p_value)
                assert (found.num_gained, found.num_clips) == (wanted.num_gained, wanted.num_clips)
                number += 1
    assert number == 4 * (3 + 2)
