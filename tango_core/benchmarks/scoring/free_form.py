"""Match free-form replies with accepted answers: `exact` and `contains`.

Both compare words. Capitals, the form of Unicode characters, and punctuation around a word do not
count; a sign before a number, and "+", "#" and "%" behind a word, do ("-5", "C++", "50%"). Every
Chinese or Japanese character is a word of its own, since nothing parts words there.
"""

from __future__ import annotations

import re
import unicodedata

from tango_core.types import Question

MATCHES = ("exact", "contains")

_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
# All apostrophes are the same one, and a long dash parts words as a space does.
_ALIKE = {0x2018: "'", 0x2019: "'", 0x02BC: "'", 0x2014: " "}
_BEFORE = re.compile(r"^(?:(?![-+]?\.?\d)[\W_])+")
_BEHIND = re.compile(r"(?:[^\w+#%]|_)+$")


def matches(reply: str, question: Question) -> bool:
    """Whether a reply is an accepted answer (`"exact"`), or holds one (`"contains"`).

    An answer is held where its words occur in the reply one after the other: "a red cup" holds
    "red" and "red cup", "3.5 seconds" does not hold "5". So does "not red" hold "red".

    Args:
        reply: The model's text; empty matches nothing.
        question: A question with `accepted` answers.
    """
    given = words(reply)
    accepted = [answer for answer in map(words, question.accepted) if answer]
    if question.match == "exact":
        return given in accepted
    return any(
        given[at : at + len(answer)] == answer for answer in accepted for at in range(len(given))
    )


def words(text: str) -> list[str]:
    """Split a text into the words that are compared; what is only punctuation is none."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_ALIKE)
    parts = _UNSPACED.sub(r" \g<0> ", folded).split()
    return [word for part in parts if (word := _BEHIND.sub("", _BEFORE.sub("", part)))]
