"""Our reading of a reply, the same under both harnesses' prompts."""

from __future__ import annotations

from tango_core.benchmarks.scoring.multiple_choice import read
from tango_core.types import Question


def read_choice(reply: str, question: Question) -> int | None:
    """Read the option a reply names; `None` if it names none, or several.

    Both harnesses ask for a letter, so a letter comes first even where it is also the text of
    another option, as in six questions of MVBench ("What letter did the person write?").
    """
    return read(reply, question.choices, letters_first=True).choice
