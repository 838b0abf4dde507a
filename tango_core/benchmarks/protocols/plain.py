"""The protocol of a benchmark that has none of its own: options line by line, general reading."""

from __future__ import annotations

from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.scoring.multiple_choice import lettered, read_option
from tango_core.types import Prompt, Question

INSTRUCTION = "Answer with the option's letter from the given choices directly."


def render_prompt(question: Question) -> Prompt:
    """Put the question after the clip: text, options by line, instruction; or the text alone."""
    if not question.choices:
        return Prompt(before="", after=question.text)
    lines = [question.text, *lettered(question.choices), INSTRUCTION]
    return Prompt(before="", after="\n".join(lines))


def read_reply(reply: str, question: Question) -> int | None:
    """Read the option a reply names by the general rules; a free-form reply names none."""
    return read_option(reply, question.choices) if question.choices else None


PLAIN = Protocol("plain", render_prompt, read_reply, max_new_tokens=128)
