"""The group score against the 64 patterns that the released scorers were run on."""

import json

import numpy as np
import pytest
from golden_files import GOLDEN_DIR

from tango_core.metrics import GROUP_SCORE, Questions
from tango_core.metrics.metric import STRUCTURES, score_of_group, structure_of

PATTERNS = json.loads((GOLDEN_DIR / "videomme_v2_charades_sta.json").read_text())[
    "videomme_v2_groups"
]


def questions_of(groups):
    """Questions of groups [(kind, structure, pattern)], the places of a group in mixed order."""
    sets, codes, clips, right = [], [], [], []
    for clip, (kind, structure, pattern) in enumerate(groups):
        for place in (2, 0, 3, 1):
            if pattern[place] != " ":
                sets.append(
                    {
                        "group_type": kind,
                        "group_structure": structure_of(structure),
                        "group_position": str(place + 1),
                    }
                )
                codes.append(len(sets) - 1)
                clips.append(clip)
                right.append(pattern[place] == "1")
    right = np.array(right, bool)
    scored = np.ones(len(right), bool)
    return Questions(
        scored, right, right.astype(float), np.array(clips, int), sets, np.array(codes, int)
    )


def test_every_pattern_has_the_released_score():
    for kind, structure, pattern, percent in PATTERNS:
        found = score_of_group(kind, structure_of(structure), [one == "1" for one in pattern])
        assert 100 * found == pytest.approx(percent, abs=1e-4), (kind, structure, pattern)


def test_there_are_all_patterns_of_four_structures():
    assert len({tuple(row[:3]) for row in PATTERNS}) == 64
    assert {structure_of(row[1]) for row in PATTERNS} == {"None", *STRUCTURES}


def test_all_groups_at_once_have_the_scores_of_each():
    found = GROUP_SCORE.count(questions_of([row[:3] for row in PATTERNS]))
    assert found.counts.sum() == 64
    assert 100 * found.values[found.counts] == pytest.approx([row[3] for row in PATTERNS], abs=1e-4)


def test_incomplete_groups_have_no_score():
    groups = [("logic", "[1, 2, 3, 4]", one) for one in ("11 1", "1111", " 111", "111 ")]
    counts, values = GROUP_SCORE.count(questions_of(groups))
    assert values[counts].tolist() == [1.0]


def test_a_question_that_does_not_count_leaves_its_group_incomplete():
    asked = questions_of([("relevance", "None", "1110"), ("relevance", "None", "1100")])
    asked.scored[0] = False
    counts, values = GROUP_SCORE.count(asked)
    assert values[counts].tolist() == [0.25]


@pytest.mark.parametrize(
    ("kind", "structure", "number"),
    [("logic", "[4,3,2,1]", 4), ("riddle", "", 4), ("logic", "", 3)],
)
def test_unknown_groups_are_refused(kind, structure, number):
    with pytest.raises(ValueError, match="group"):
        score_of_group(kind, structure, [True] * number)
