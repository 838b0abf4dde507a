"""What lmms-eval's benchmarks share in scores: the letter that a reply gives.

Source: EvolvingLMMs-Lab/lmms-eval 0.7.3, `lmms_eval/tasks/_task_utils/mcq_extract.py`, and for
`first_capital` the tasks `videomme` and `longvideobench`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# How sure a format makes us that this letter is the answer; a letter found anywhere has rank 0.
_RANKS = {
    "start": 10,
    "end": 9,
    "phrase": 7,
    "({})": 6,
    "{}.": 5,
    "{}:": 4,
    "{})": 3,
    "{} ": 2,
}
_PHRASES = (
    *(f"{the}{kind} is" for the in ("the ", "") for kind in ("answer", "choice")),
    *(
        f"{the}{which} {kind} is"
        for the in ("the ", "")
        for which, kind in (
            ("correct", "answer"),
            ("best", "answer"),
            ("correct", "option"),
            ("best", "option"),
            ("correct", "choice"),
        )
    ),
    "my answer is",
    "my choice is",
    "i choose",
    "i select",
    "i pick",
    "옵션",
    "정답은",
    "답은",
    "답:",
    "答案是",
    "答案为",
    "选",
    "答えは",
)


def ranked_letter(reply: str, letters: str) -> str:
    """Return the letter that a reply gives in the surest of ten formats, or "".

    A letter at the start is surer than one at the end, then follow "the answer is", "(A)", "A.",
    "A:", "A)", "A " and a letter anywhere; of several in the same format the last one counts.
    Phrases rank all letters behind them, in words too: "The answer is B. Can't be sure" is C.
    """
    text = reply.strip()
    for mark in ",.!?;:'\"":
        text = text.strip(mark)
    if not text:
        return ""
    text = f" {text} "
    stripped = text.strip()
    found: list[tuple[int, int, int]] = []
    for order, letter in enumerate(letters):
        for pattern, rank in _RANKS.items():
            if "{}" in pattern and pattern.format(letter) in text:
                found.append((rank, text.rfind(pattern.format(letter)), -order))
        for phrase in _PHRASES:
            begin = text.lower().find(phrase)
            at = text.find(letter, begin + len(phrase)) if begin != -1 else -1
            if at != -1:
                found.append((_RANKS["phrase"], at, -order))
        if re.match(rf"{letter}(?![^\W\d_])", stripped):
            found.append((_RANKS["start"], 0, -order))
        if re.search(rf"(?<![^\W\d_]){letter}$", stripped):
            found.append((_RANKS["end"], len(text) - 1, -order))
    if not found:
        found = [(0, text.rfind(x), -order) for order, x in enumerate(letters) if x in text]
    return letters[-max(found)[2]] if found else ""


def first_capital(reply: str, letters: str, prefixes: Sequence[str]) -> str:
    """Return the first of `letters` that occurs in a reply after phrases are deleted, or ""."""
    for prefix in prefixes:
        reply = reply.replace(prefix, "")
    found = re.search(f"[{letters}]", reply)
    return found[0] if found else ""
