"""Our reading of a reply to each form of question, the same under both harnesses' prompts."""

from __future__ import annotations

import re

from tango_core.benchmarks.protocols import reading
from tango_core.benchmarks.scoring.multiple_choice import answer_part, mentioned
from tango_core.benchmarks.tempcompass.tasks import (
    CAPTION_MATCHING,
    MULTI_CHOICE,
    YES_NO,
    YES_OR_NO,
    options_in,
)
from tango_core.types import Question

_NAME = re.compile(r"\b(?:option|sentence|caption)\s+([a-z0-9])\b", re.IGNORECASE)
# "A", "(1)", "2.", and "B) A man runs".
_LABEL = re.compile(r"[\W_]*([A-Z0-9])(?:[\W_]*|\s*[).:]\s.*)", re.DOTALL)
# The word alone, before a pause or a reason, or before what it is about: "no idea" and "no one" are
# no answer.
_OPENING = re.compile(
    r"[\W_]*(yes|no)\b(?=[\W_]*$|\s*[,.;:!\n*\"')\]\u2013\u2014]|\s+[-(]"
    r"|\s+(?:it|he|she|they|we|you|the|this|that|there|because|since|as|based)\b)",
    re.IGNORECASE,
)
_BOTH = re.compile(
    r"[\W_]*(yes|no)[\s,]+(?:(?:and|or)\b|(?!\1)(?:yes|no)[\W_]*$)"
    r"|[\W_]*(yes|no)\.\s+(?!\2)(?:yes|no)[\W_]*$",
    re.IGNORECASE,
)
_STATED = re.compile(r"\banswer\s*(?:is\s*:?|:)[\s\"'*]*(yes|no)\b", re.IGNORECASE)


def read_choice(reply: str, question: Question) -> int | None:
    """Read the option a reply names; `None` if it names none, or several, or contradicts itself.

    Captioning has no options: its replies are recorded, not read.
    """
    task = question.groups["task"]
    if task == MULTI_CHOICE:
        return reading.read_choice(reply, question)
    if task == YES_NO:
        return _yes_or_no(answer_part(reply))
    return _caption(answer_part(reply), question) if task == CAPTION_MATCHING else None


def _yes_or_no(reply: str) -> int | None:
    """Yes or no, which must open the reply or follow "answer"; "Yes and no", "Yes, no": neither."""
    opening = _OPENING.match(reply)
    said = {word.lower() for word in _STATED.findall(reply)}
    if opening:
        said.add(opening[1].lower())
    if len(said) != 1 or _BOTH.match(reply):
        return None
    return YES_OR_NO.index(said.pop())


def _caption(reply: str, question: Question) -> int | None:
    """The sentence that a reply repeats or names; both, where it does both, must be the same."""
    options = options_in(question.text, CAPTION_MATCHING)
    labels = [option.label for option in options]
    named = {label.upper() for label in _NAME.findall(reply)}
    if not named and (alone := _LABEL.fullmatch(reply)):
        named = {alone[1]}
    repeated = set(mentioned(reply, question.choices))
    if any(name not in labels for name in named):
        return None
    found = repeated | {labels.index(name) for name in named}
    return found.pop() if len(found) == 1 else None
