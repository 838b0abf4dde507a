"""lmms-eval's protocol: what it asks, and what it counts as right.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/{videomme,mvbench,longvideobench,mlvu}` and
`lmms_eval/tasks/_task_utils/mcq_extract.py`. MLVU's rule is that of the copy the published
latencies were made with; later versions are more lenient.
"""

from __future__ import annotations

import re

from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question

_VIDEOMME_TASK = (
    "Select the best answer to the following multiple-choice question based on the video and the "
    "subtitles. Respond with only the letter (A, B, C, or D) of the correct option."
)
_LETTER_PLEASE = "Answer with the option's letter from the given choices directly."

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
_LONGVIDEOBENCH_PREFIXES = (
    "The best answer is",
    "The correct answer is",
    "The answer is",
    "The answer",
    "The best option is",
    "The correct option is",
    "Best answer:",
    "Best option:",
)
# Not a look-behind: the original says "(?!<=", which never fails on a full stop.
_FULL_STOP = re.compile(r"(?!<=\d)(\.)(?!\d)")
_THOUSANDS = re.compile(r"(\d)(\,)(\d)")
_PUNCTUATION = (*';/[]"{}()=+\\_-><@`,?!',)
# The original passes `re.UNICODE` where `re.sub` expects a count.
_MAX_FULL_STOPS = int(re.UNICODE)


def render_videomme(question: Question) -> Prompt:
    """Video-MME; the text mentions subtitles also where there are none."""
    return Prompt(before="", after=f"{_videomme(question)}\n\n{_LETTER_PLEASE}")


def render_videomme_llava_vid(question: Question) -> Prompt:
    """Video-MME with the ending that lmms-eval uses for LLaVA-Video."""
    return Prompt(before="", after=f"{_videomme(question)}\nThe best answer is:")


def _videomme(question: Question) -> str:
    """Task, question and options."""
    return "\n".join([_VIDEOMME_TASK, question.text, *lettered(question.choices)])


def render_mvbench(question: Question) -> Prompt:
    """MVBench, without a space after the colon."""
    options = lettered(question.choices, "({letter}) {text}")
    lines = [f"Question:{question.text}", "Option:", *options, "Only give the best option.\n"]
    return Prompt(before="", after="\n".join(lines))


def render_longvideobench(question: Question) -> Prompt:
    """LongVideoBench, task `longvideobench_val_v`, with a line break at the end."""
    lines = [question.text, *lettered(question.choices), f"{_LETTER_PLEASE}\n"]
    return Prompt(before="", after="\n".join(lines))


def render_mlvu(question: Question) -> Prompt:
    """MLVU, task `mlvu_dev`, which ends with the beginning of a reply."""
    options = lettered(question.choices, "({letter}) {text}")
    lines = [question.text, *options, "Only give the best option.", "Best option: ("]
    return Prompt(before="", after="\n".join(lines))


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


def score_videomme(reply: str, question: Question) -> float | None:
    """1 if the ranked formats give the right letter; `None` if the answer is not known."""
    if question.answer is None:
        return None
    return float(ranked_letter(reply, "ABCD") == letter_of(question.answer))


def score_mvbench(reply: str, question: Question) -> float | None:
    """1 if a stand-alone letter is the right one, in either case: "a bag" is A.

    `None` for an empty reply, which leaves the denominator there, so that saying nothing raises
    the accuracy.
    """
    if question.answer is None or reply == "":
        return None
    return float(_only_letter(reply) == letter_of(question.answer))


def _only_letter(reply: str) -> str:
    """Read a reply as MVBench's `mcq_acc` does: "B. text", or the first word that is a letter."""
    opening = re.match(r"([A-E])\.\s*(.+)$", reply.strip(), re.IGNORECASE)
    if opening:
        return opening[1].upper()
    text = reply.replace("\n", " ").replace("\t", " ").strip()
    cleaned = text
    for mark in _PUNCTUATION:
        touches = f"{mark} " in text or f" {mark}" in text or _THOUSANDS.search(text)
        cleaned = cleaned.replace(mark, "" if touches else " ")
    cleaned = _FULL_STOP.sub("", cleaned, count=_MAX_FULL_STOPS)
    cleaned = cleaned.strip("'").strip('"').strip(")").strip("(").strip().lower()
    letter = re.search(r"\b([A-E])\b", cleaned, re.IGNORECASE)
    return letter[1].upper() if letter else cleaned


def first_capital(reply: str) -> str:
    """Return the first capital from A to E after known phrases are deleted, or ""."""
    for prefix in _LONGVIDEOBENCH_PREFIXES:
        reply = reply.replace(prefix, "")
    found = re.search("[ABCDE]", reply)
    return found[0] if found else ""


def score_longvideobench(reply: str, question: Question) -> float | None:
    """1 if the first capital from A to E is the right one; `None` if the answer is not known.

    A reply without one is answered at random there, from an unseeded generator; the score is then
    what that is worth on average, one over the number of options.
    """
    if question.answer is None:
        return None
    letter = first_capital(reply)
    if not letter:
        return 1.0 / len(question.choices)
    return float(letter == letter_of(question.answer))


def before_bracket(reply: str) -> str:
    """Return the character before the first closing bracket, or the whole reply without one."""
    reply = reply.strip()
    if ")" not in reply:
        return reply
    end = reply.index(")")
    return reply[end - 1 : end]


def score_mlvu(reply: str, question: Question) -> float:
    """1 if the character before the first closing bracket, or the whole reply, is the right letter.

    "B." and "B: a bag" are wrong.
    """
    return float(
        question.answer is not None and before_bracket(reply) == letter_of(question.answer)
    )


VIDEOMME = Protocol("lmms_eval", render_videomme, read_choice, harness_score=score_videomme)
VIDEOMME_LLAVA_VID = Protocol(
    "lmms_eval_llava_vid", render_videomme_llava_vid, read_choice, harness_score=score_videomme
)
MVBENCH = Protocol("lmms_eval", render_mvbench, read_choice, harness_score=score_mvbench)
LONGVIDEOBENCH = Protocol(
    "lmms_eval",
    render_longvideobench,
    read_choice,
    max_new_tokens=32,
    harness_score=score_longvideobench,
)
MLVU = Protocol("lmms_eval", render_mlvu, read_choice, harness_score=score_mlvu)
