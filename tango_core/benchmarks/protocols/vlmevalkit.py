"""What VLMEvalKit's benchmarks share in prompts and scores.

Source: open-compass/VLMEvalKit, `vlmeval/dataset/{videomme,mvbench,longvideobench,mlvu}.py` with
their `utils`, and `vlmeval/utils/matching_util.py`. Scores are those without a judge model, which
is what its exact-matching setting and a machine without an API key give.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question

LETTER_PLEASE = "Answer with the option's letter from the given choices directly."

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
# "The correct answer is **B**. Here's why": since change 1552, faults included: "the answer is a
# bag" is A.
_STATED = re.compile(r"answer\s+is\s+\**([ABCD])", re.IGNORECASE)
_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)


def with_bracketed_options(question: Question) -> str:
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


def equal_letter(letter: str, question: Question) -> float | None:
    """Compare a letter with the right one."""
    if question.answer is None:
        return None
    return float(letter == letter_of(question.answer))


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
    said = _STATED.search(reply) if stated else None
    if said and said[1].upper() in choices:
        return said[1].upper()
    lower = reply.lower()
    if len(lower) > 2 * sum(len(text) for text in choices.values()):
        return "Z"
    mentioned = [letter for letter, text in choices.items() if text.lower() in lower]
    return mentioned[0] if len(mentioned) == 1 else "Z"


def for_internvl(asked: Prompt) -> Prompt:
    """A prompt of Video-MME as its wrapper of InternVL changes it.

    "Answer:" goes and a request comes. It deletes every line that begins so, in a question's text,
    too; the space behind it stays.
    """
    return Prompt(asked.before, asked.after.replace("\nAnswer:", "") + f"\n{LETTER_PLEASE}")
