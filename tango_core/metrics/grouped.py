"""The group score of Video-MME-v2: four questions about one video have one score.

MME-Benchmarks/Video-MME-v2, `evaluation/test_videomme_v2.py` at b24176a1; the same rules are in
VLMEvalKit (`vlmeval/dataset/videomme_v2.py`) and in lmms-eval (`tasks/videomme_v2`). All scores are
in percent there. A reply that failed or could not be read is wrong here; the official script counts
it as right in logic groups, because it stores -1 for it and asks whether that is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from tango_core.metrics.metric import Counted, Questions

Ints = npt.NDArray[np.int64]

GROUP_SIZE = 4
# Groups of a question that the score reads; `group_position` counts from 1.
TYPE, STRUCTURE, POSITION = "group_type", "group_structure", "group_position"
RELEVANCE, LOGIC = "relevance", "logic"
# Structure of a logic group, without spaces -> score by the length of the leading right run.
_LADDERS = {
    "[1,2,3,4]": (0.0, 1 / 16, 4 / 16, 9 / 16, 1.0),
    "[1,[2,3],4]": (0.0, 1 / 12, 4 / 12, 7 / 12, 1.0),
    "[[1,2],3,4]": (0.0, 0.1, 0.2, 0.5, 1.0),
}
STRUCTURES = tuple(_LADDERS)


def structure_of(text: str) -> str:
    """A structure as the release writes it, in the form of `STRUCTURES`."""
    return "".join(text.split())


def score_of_group(kind: str, structure: str, right: Sequence[bool]) -> float:
    """Score of one group of four questions, in [0, 1].

    A relevance group asks about one thing in four ways: its score is the square of the share of
    right answers. A logic group is a chain of reasoning, of which the leading right answers count;
    in brackets stand two steps that need no order, so the later one of them may be right alone.

    Args:
        kind: `"relevance"` or `"logic"`.
        structure: Of a logic group, one of `STRUCTURES`; ignored for the other kind.
        right: Four values in the order of the questions.

    Raises:
        ValueError: If kind or structure is another one, or there are not four values.
    """
    if len(right) != GROUP_SIZE:
        raise ValueError(f"a group has {GROUP_SIZE} questions, got {len(right)}")
    if kind == RELEVANCE:
        return (sum(map(bool, right)) / GROUP_SIZE) ** 2
    if kind != LOGIC or structure not in _LADDERS:
        raise ValueError(
            f"group_type must be {RELEVANCE} or {LOGIC}, and group_structure of the latter one of "
            f"{', '.join(STRUCTURES)}; got {kind!r} and {structure!r}"
        )
    run = next((at for at, one in enumerate(right) if not one), GROUP_SIZE)
    first, second, third, _ = map(bool, right)
    if structure == "[1,[2,3],4]" and first and not second and third:
        run = 2
    if structure == "[[1,2],3,4]" and not first and second:
        run = 1
    return _LADDERS[structure][run]


def count_groups(questions: Questions) -> Counted:
    """One value per clip, at its last question; clips without all four questions have none.

    The last question is where the release states level and categories of a group.
    """
    places, structures = _places_and_structures(questions)
    known = questions.scored & (places >= 0)
    size = int(questions.clips.max(initial=-1)) + 1
    there = np.zeros((size, GROUP_SIZE), dtype=bool)
    right = np.zeros((size, GROUP_SIZE), dtype=bool)
    rows, columns = questions.clips[known], places[known]
    there[rows, columns] = True
    right[rows, columns] = questions.right[known]
    patterns = right @ (1 << np.arange(GROUP_SIZE - 1, -1, -1))
    counts = (
        known & (places == GROUP_SIZE - 1) & np.logical_and.reduce(there, axis=1)[questions.clips]
    )
    values = np.zeros(len(counts))
    at = counts.nonzero()[0]
    tables = np.array([_table(*structure) for structure in structures] or [(0.0,) * 16])
    values[at] = tables[_codes_of(questions)[at], patterns[questions.clips[at]]]
    return Counted(counts, values)


def _places_and_structures(questions: Questions) -> tuple[Ints, list[tuple[str, str]]]:
    """(q,) place in the group from 0, -1 for none; and kind and structure of every set."""
    sets = questions.group_sets
    places = np.array([int(groups.get(POSITION, 0)) - 1 for groups in sets] or [-1])
    structures = [(groups.get(TYPE, RELEVANCE), groups.get(STRUCTURE, "")) for groups in sets]
    return places[_codes_of(questions)], structures


def _codes_of(questions: Questions) -> Ints:
    """(q,) number of every question's set of groups."""
    return np.asarray(questions.group_codes, dtype=np.int64)


@cache
def _table(kind: str, structure: str) -> tuple[float, ...]:
    """Score of all 16 patterns of right and wrong, wrong-wrong-wrong-wrong first."""
    patterns = product((False, True), repeat=GROUP_SIZE)
    return tuple(score_of_group(kind, structure, pattern) for pattern in patterns)
