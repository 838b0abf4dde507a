"""One letter per question and cell: whether the answer is right, and what its status is.

A list of 100,000 questions under 21 cells is 100,000 short words then, which a database, and a page
without one, can filter alike.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jobs.results.answer_columns import (
    DAMAGED_BIT,
    FAILED_BIT,
    OK,
    RIGHT,
    SCORED,
    UNPARSED,
    AnswerColumns,
)

NOT_ASKED = "."

OUTCOMES = {
    "right": "Rr",
    "wrong": "WwUuDdeax",
    "unscored": "Nn",
}
"""What counts as right or wrong, as in the tables: a failed or unreadable answer is wrong."""

STATUSES = {
    "ok": "RWN",
    "unparsed": "U",
    "decode_failed": "d",
    "decode_damaged": "Drwun",
    "encode_failed": "e",
    "answer_failed": "a",
    "other": "x",
}
_FAILURES = {
    "decode_failed": "d",
    "decode_damaged": "D",
    "encode_failed": "e",
    "answer_failed": "a",
}


def letters_of(columns: AnswerColumns) -> npt.NDArray[np.uint8]:
    """(n,) the letter of every answer as a byte.

    Small letters of r, w, u, n are answers about a clip that is damaged and was kept.
    """
    bits = columns.bits
    known = (bits & SCORED) > 0
    letters = np.full(len(bits), ord("N"), np.uint8)
    letters[known & ((bits & OK) > 0)] = ord("W")
    letters[(bits & RIGHT) > 0] = ord("R")
    letters[known & ((bits & UNPARSED) > 0)] = ord("U")
    answered = (bits & (OK | UNPARSED)) > 0
    letters[answered & ((bits & DAMAGED_BIT) > 0)] += ord("r") - ord("R")
    failed = (bits & FAILED_BIT) > 0
    letters[failed | ~answered] = ord("x")
    codes, names = columns.texts("status")
    for code, name in enumerate(names):
        if name in _FAILURES:
            letters[failed & (codes == code)] = ord(_FAILURES[name])
    return letters
