"""The four forms of a question of TempCompass, and the options that a question's text holds."""

from __future__ import annotations

import re
from typing import NamedTuple

MULTI_CHOICE = "multi-choice"
CAPTION_MATCHING = "caption_matching"
CAPTIONING = "captioning"
YES_NO = "yes_no"

# In the order of VLMEvalKit's concatenated table.
TASKS = (MULTI_CHOICE, CAPTION_MATCHING, CAPTIONING, YES_NO)
DIMENSIONS = ("action", "direction", "speed", "order", "attribute_change")
YES_OR_NO = ("yes", "no")

# "A. dancing", and in two rows of the release "C.Both"; one has a space in front of the letter.
_LETTERED = re.compile(r"\s*([A-Z])[.)]\s*(.*)", re.DOTALL)
# "Option 1: ..", "Sentence A: ..", "Caption B: ..".
_NAMED = re.compile(r"\s*((?:Option|Sentence|Caption) ([A-Z0-9])):\s*(.*)", re.DOTALL)


class Option(NamedTuple):
    """One line of options.

    Attributes:
        line: As it stands in the question, e.g. `"Option 1: A man runs."`.
        label: What names it: `"A"`, `"1"`.
        text: What is offered, e.g. `"A man runs."`.
    """

    line: str
    label: str
    text: str


def options_in(text: str, task: str) -> tuple[Option, ...]:
    """Read the options that stand in a question of `multi-choice` or `caption_matching`.

    Raises:
        ValueError: If a line behind the first is no option, or there are fewer than two.
    """
    lines = [line for line in text.split("\n")[1:] if line.strip()]
    found = []
    for line in lines:
        match = (_LETTERED if task == MULTI_CHOICE else _NAMED).fullmatch(line)
        if match is None:
            raise ValueError(f"line {line!r} of the question is no option")
        label, words = (match[1], match[2]) if task == MULTI_CHOICE else (match[2], match[3])
        found.append(Option(line, label, words))
    if len(found) < 2:
        raise ValueError("the question holds fewer than two options")
    return tuple(found)
