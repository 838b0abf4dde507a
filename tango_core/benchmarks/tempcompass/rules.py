"""The rules without a judge that both harnesses copied from the official scripts.

Source: `eval_multi_choice.py`, `eval_yes_no.py` and `eval_caption_matching.py` of
llyx97/TempCompass, as they are in VLMEvalKit (`vlmeval/dataset/utils/tempcompass.py`) and lmms-eval
(`lmms_eval/tasks/tempcompass/utils.py`). Replies are not stripped there: "A" with a line break
behind it matches no rule.
"""

from __future__ import annotations

from tango_core.benchmarks.tempcompass.tasks import (
    CAPTION_MATCHING,
    MULTI_CHOICE,
    YES_NO,
    options_in,
)
from tango_core.types import Question

_LETTERS = ("A", "B", "C", "D")
_KINDS = ("Sentence ", "Option ", "Caption ")


def rated(reply: str, question: Question) -> float | None:
    """1 or 0 by the rule of the question's form; `None` where only the judge could say.

    Args:
        reply: The model's text.
        question: With the group `task`; of `captioning` nothing can be said.
    """
    task = question.groups["task"]
    if question.answer is None:
        return None
    if task == YES_NO:
        said = next((word for word in ("yes", "no") if reply.lower().startswith(word)), None)
        return None if said is None else float(said == question.choices[question.answer])
    if task == MULTI_CHOICE:
        return _multi_choice(reply, options_in(question.text, task)[question.answer].line)
    return _caption_matching(reply, question) if task == CAPTION_MATCHING else None


def _multi_choice(reply: str, answer: str) -> float | None:
    """The whole line, a lone letter, or a letter before "." or ")", whose text does not count."""
    if reply == answer:
        return 1.0
    if reply in _LETTERS:
        return float(reply == answer[0])
    for mark in (".", ")"):
        if reply.startswith(tuple(letter + mark for letter in _LETTERS)):
            return float(reply[0] == answer[0])
    return None


def _caption_matching(reply: str, question: Question) -> float | None:
    """The line, its sentence, or its label; of several that match the last one counts."""
    assert question.answer is not None
    options = options_in(question.text, CAPTION_MATCHING)
    lines = [option.line for option in options]
    sentences = [line.split(": ")[1] for line in lines if ": " in line]
    names = [line.split(": ")[0] for line in lines]
    behind = reply.split(") ")[1] if ") " in reply else None
    said: str | None = next((line for line in lines if line == reply), None)
    for sentence in sentences:
        if sentence in (reply, behind):
            said = sentence
    for name in (*names, *map(_without_kind, names)):
        if name in (reply, reply.replace(".", "")):
            said = name
    if said is None:
        return None
    answer = lines[question.answer]
    name = answer.split(": ")[0]
    right = {answer, answer.split(":")[0], *answer.split(": ")[1:2], *name.split()[1:2]}
    return float(said in right)


def _without_kind(name: str) -> str:
    """The label alone: "1" for "Option 1"."""
    for kind in _KINDS:
        name = name.replace(kind, "")
    return name
