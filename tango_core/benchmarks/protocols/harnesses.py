"""Reply parsing of the evaluation harnesses, faults included.

Sources: open-compass/VLMEvalKit, `vlmeval/dataset/{videomme,mvbench,longvideobench,mlvu}.py` with
their `utils`, and `vlmeval/utils/matching_util.py` (scores without a judge model, which is what its
exact-matching setting and a machine without an API key give); EvolvingLMMs-Lab/lmms-eval 0.7.3,
`lmms_eval/tasks/_task_utils/mcq_extract.py` and the tasks `videomme` and `longvideobench`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tango_core.benchmarks.protocols.protocol import LETTER_PLEASE
from tango_core.benchmarks.scoring.multiple_choice import letter_of
from tango_core.types import Prompt, Question

_ANSWER = ("The best answer is", "The correct answer is", "The answer is", "The answer")
OPTION_PHRASES = (*_ANSWER, "The best option is", "The correct option is")
"""Begin the phrases that the newer tasks delete."""
MERGED_PHRASES = (
    *_ANSWER,
    "The best option isThe correct option is",
    "Best answer:Best option:",
)
"""Phrases that Video-MME deletes: two commas are missing there, hence the two long ones."""
VLMEVALKIT_PHRASES = (*MERGED_PHRASES, "Answer:", "Option:")

# "The correct answer is **B**. Here's why": since change 1552, faults included: "the answer is a
# bag" is A.
_STATED = re.compile(r"answer\s+is\s+\**([ABCD])", re.IGNORECASE)
_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)

# Rank of each format of a letter; a letter found anywhere has rank 0.
_START, _END, _PHRASE = 10, 9, 7
_RANKS = {"({})": 6, "{}.": 5, "{}:": 4, "{})": 3, "{} ": 2}
_KINDS = ("answer", "choice", "correct answer", "best answer", "correct option", "best option")
_RANKED_PHRASES = (
    *(f"{the}{kind} is" for the in ("the ", "") for kind in (*_KINDS, "correct choice")),
    *("my answer is", "my choice is", "i choose", "i select", "i pick"),
    *("옵션", "정답은", "답은", "답:", "答案是", "答案为", "选", "答えは"),
)


def letter_score(read: Callable[[str], str], reply: str, question: Question) -> float | None:
    """1 if `read` finds the right letter in a reply, else 0; `None` if the answer is not known."""
    if question.answer is None:
        return None
    return float(read(reply) == letter_of(question.answer))


def guess_score(letter: str, question: Question) -> float | None:
    """1 if the letter that was read is the right one; `None` if the answer is not known.

    "" stands for a reply without one, where the harness draws an option at random: its score is
    what that is worth on average, one over the number of options.
    """
    if question.answer is None:
        return None
    return float(letter == letter_of(question.answer)) if letter else 1 / len(question.choices)


def first_capital(reply: str, letters: str, phrases: Sequence[str] = VLMEVALKIT_PHRASES) -> str:
    """Return the first of `letters` that occurs in a reply after phrases are deleted, or "".

    So "The answer is B" is B; in "Based on what I see, C" the first capital is the B of "Based".
    """
    for phrase in phrases:
        reply = reply.replace(phrase, "")
    found = re.search(f"[{letters}]", reply)
    return found[0] if found else ""


def ranked_letter(reply: str, letters: str = "ABCD") -> str:
    """Return the letter that a reply gives in the surest of lmms-eval's ten formats, or "".

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
            if pattern.format(letter) in text:
                found.append((rank, text.rfind(pattern.format(letter)), -order))
        for phrase in _RANKED_PHRASES:
            begin = text.lower().find(phrase)
            at = text.find(letter, begin + len(phrase)) if begin != -1 else -1
            if at != -1:
                found.append((_PHRASE, at, -order))
        if re.match(rf"{letter}(?![^\W\d_])", stripped):
            found.append((_START, 0, -order))
        if re.search(rf"(?<![^\W\d_]){letter}$", stripped):
            found.append((_END, len(text) - 1, -order))
    if not found:
        found = [(0, text.rfind(x), -order) for order, x in enumerate(letters) if x in text]
    return letters[-max(found)[2]] if found else ""


ranked_score = partial(letter_score, ranked_letter)
"""Score by lmms-eval's ranked formats."""


def infers(reply: str, question: Question, *, stated: bool) -> bool:
    """Whether the option inferred from a reply is the right one; of equal options the first is.

    Args:
        reply: The model's text.
        question: What was asked.
        stated: As in `infer_option`.
    """
    if question.answer is None:
        return False
    choices = {letter_of(index): text for index, text in enumerate(question.choices)}
    right = question.choices[question.answer]
    # The answer's text is replaced by its letter while the options are still being compared with
    # it, so that an option "A" behind a right first option becomes the right one.
    for letter, text in choices.items():
        if text == right:
            right = letter
    return infer_option(reply, choices, stated=stated) == right


def infer_option(reply: str, choices: Mapping[str, str], *, stated: bool = True) -> str:
    """Infer an option from a free reply by VLMEvalKit's rules; "Z" for none.

    A letter that stands alone is taken if it is the only such letter and among the last four words;
    else the letter behind "answer is"; else the option whose text occurs in the reply, white space
    included, if only one does, unless the reply is more than twice as long as all options together.

    Args:
        reply: The model's text, unchanged.
        choices: Letter -> text.
        stated: Whether a letter behind "answer is" counts, as since change 1552 (2026-05-21).
    """
    if any(refusal in reply for refusal in _REFUSALS):
        return "Z"
    words = re.sub(r"[.()\[\],:;!*#{}]", " ", reply).split()
    letters = [letter for letter in choices if letter in words]
    if len(letters) == 1 and words.index(letters[0]) > len(words) - 5:
        return letters[0]
    if not letters and "Z" in words:
        return "Z"
    behind = _STATED.search(reply) if stated else None
    if behind and behind[1].upper() in choices:
        return behind[1].upper()
    lower = reply.lower()
    if len(lower) > 2 * sum(len(text) for text in choices.values()):
        return "Z"
    mentioned = [letter for letter, text in choices.items() if text.lower() in lower]
    return mentioned[0] if len(mentioned) == 1 else "Z"


def for_internvl(prompt: Prompt) -> Prompt:
    """Change a prompt of Video-MME as VLMEvalKit's wrapper of InternVL does.

    It deletes every "Answer:" that begins a line, in a question's text, too, keeps the space behind
    it, and appends a request.
    """
    after = prompt.after.replace("\nAnswer:", "")
    return Prompt(prompt.before, f"{after}\n{LETTER_PLEASE}")
