"""VLMEvalKit's protocol: what it asks, and what it counts as right.

Source: open-compass/VLMEvalKit, `vlmeval/dataset/{videomme,mvbench,longvideobench,mlvu}.py` with
their `utils`, and `vlmeval/utils/matching_util.py`. Scores are those without a judge model, which
is what its exact-matching setting and a machine without an API key give.

A question that was never answered is written there as `FAILED_REPLY`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question

FAILED_REPLY = "Failed to obtain answer via API."

_VIDEOMME_TASK = (
    "\nThese are the frames of a video. Select the best answer to the following multiple-choice "
    "question based on the video. Respond with only the letter (A, B, C, or D) of the correct "
    "option.\n"
)
_MVBENCH_TASK = (
    "Carefully watch the video and pay attention to the cause and sequence of events, the detail "
    "and movement of objects, and the action and pose of persons. Based on your observations, "
    "select the best option that accurately addresses the question.\n"
)
_MLVU_TASK = (
    "Carefully watch this video and pay attention to every detail. Based on your observations, "
    "select the best option that accurately addresses the question."
)
_LETTER_PLEASE = "Answer with the option's letter from the given choices directly."

# Deleted wherever they occur, in this order. Two commas are missing in the original, hence the two
# long entries: "The best option is" alone is never deleted.
_PREFIXES = (
    "The best answer is",
    "The correct answer is",
    "The answer is",
    "The answer",
    "The best option isThe correct option is",
    "Best answer:Best option:",
    "Answer:",
    "Option:",
)
_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)


def render_videomme(question: Question) -> Prompt:
    """Video-MME without subtitles: the clip, then everything else."""
    lines = "\n".join([question.text, *lettered(question.choices)])
    return Prompt(before="", after=f"{_VIDEOMME_TASK}Question: {lines}\nAnswer: ")


def render_mvbench(question: Question) -> Prompt:
    """MVBench: the task, the clip, the question, and the beginning of a reply.

    The wrappers of all three models put the beginning of the reply into the user's turn.
    """
    return Prompt(
        before=_MVBENCH_TASK,
        after=f"{_bracketed(question)}\nOnly give the best option.Best option:(",
    )


def render_longvideobench(question: Question) -> Prompt:
    """LongVideoBench for a video model, which never sees the subtitles."""
    lines = [question.text, *lettered(question.choices), _LETTER_PLEASE]
    return Prompt(before="", after="\n".join(lines))


def render_mlvu(question: Question) -> Prompt:
    """MLVU: the task without a line break, the clip, the question."""
    return Prompt(before=_MLVU_TASK, after=f"{_bracketed(question)}\nOnly give the best option.")


def _bracketed(question: Question) -> str:
    """Write question and options as MVBench and MLVU do; white space at the end is lost."""
    options = "".join(f"{line}\n" for line in lettered(question.choices, "({letter}) {text}"))
    return f"Question: {question.text}\nOptions:\n{options}".rstrip()


def first_capital(reply: str, letters: str) -> str:
    """Return the first of `letters` that occurs in a reply, or "".

    Known phrases are deleted before, so "The answer is B" is B; in "Based on what I see, C" the
    first capital is the B of "Based".
    """
    for prefix in _PREFIXES:
        reply = reply.replace(prefix, "")
    found = re.search(f"[{letters}]", reply)
    return found[0] if found else ""


def score_videomme(reply: str, question: Question) -> float | None:
    """1 if the first capital from A to D is the right one; `None` if the answer is not known."""
    return _equal_letter(first_capital(reply, "ABCD"), question)


def score_longvideobench(reply: str, question: Question) -> float | None:
    """1 if the first capital from A to E is the right one; `None` if the answer is not known."""
    return _equal_letter(first_capital(reply, "ABCDE"), question)


def _equal_letter(letter: str, question: Question) -> float | None:
    """Compare a letter with the right one."""
    if question.answer is None:
        return None
    return float(letter == letter_of(question.answer))


def score_mvbench(reply: str, question: Question) -> float:
    """1 if MVBench's rating would count the reply as right, which is more often than it is.

    The first word is right if it is a part of "(b)": so are "", "(" and ")", for every right
    option. The rating counts every score that is not 0, and a failure is scored -1, so failures
    are right, too.
    """
    if FAILED_REPLY in reply:
        return 1.0
    # An answer that is none of the options is option -1 there, the character before "A".
    letter = "@" if question.answer is None else letter_of(question.answer)
    right = f"({letter.lower()})"
    first = reply.lower().split(" ")[0]
    if first.replace(".", "") in right or right in first:
        return 1.0
    return float(infer_option(reply, _choices(question)) == letter)


def score_mlvu(reply: str, question: Question) -> float:
    """1 if right, 0 if wrong, and -1 for a failure: M-Avg adds the scores, so it costs a point.

    The letter is the character before the first closing bracket, or the whole reply. A question
    whose answer is none of its options (two in the public release) is never right.
    """
    if FAILED_REPLY in reply:
        return -1.0
    if question.answer is None:
        return 0.0
    right = letter_of(question.answer)
    if ")" in reply:
        end = reply.index(")")
        letter = reply[end - 1 : end]
    else:
        letter = reply
    return float(letter == right or infer_option(reply, _choices(question)) == right)


def _choices(question: Question) -> dict[str, str]:
    """Options by letter."""
    return {letter_of(index): text for index, text in enumerate(question.choices)}


def infer_option(reply: str, choices: Mapping[str, str]) -> str:
    """Infer an option from a free reply by VLMEvalKit's rules; "Z" for none.

    A letter that stands alone is taken if it is the only such letter and among the last four
    words; else the option whose text occurs in the reply if only one does, unless the reply is more
    than twice as long as all options together.
    """
    reply = reply.strip()
    if any(refusal in reply for refusal in _REFUSALS):
        return "Z"
    words = re.sub(r"[.()\[\],:;!*#{}]", " ", reply).split()
    letters = [letter for letter in choices if letter in words]
    if len(letters) == 1 and words.index(letters[0]) > len(words) - 5:
        return letters[0]
    if not letters and "Z" in words:
        return "Z"
    if len(reply) > 2 * sum(len(text) for text in choices.values()):
        return "Z"
    mentioned = [letter for letter, text in choices.items() if text.lower() in reply.lower()]
    return mentioned[0] if len(mentioned) == 1 else "Z"


VIDEOMME = Protocol(
    "vlmevalkit",
    render_videomme,
    read_choice,
    failed_reply=FAILED_REPLY,
    harness_score=score_videomme,
)
MVBENCH = Protocol(
    "vlmevalkit",
    render_mvbench,
    read_choice,
    failed_reply=FAILED_REPLY,
    harness_score=score_mvbench,
)
LONGVIDEOBENCH = Protocol(
    "vlmevalkit",
    render_longvideobench,
    read_choice,
    failed_reply=FAILED_REPLY,
    harness_score=score_longvideobench,
)
MLVU = Protocol(
    "vlmevalkit", render_mlvu, read_choice, failed_reply=FAILED_REPLY, harness_score=score_mlvu
)
