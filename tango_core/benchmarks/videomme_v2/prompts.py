"""The words of Video-MME-v2's questions, which both harnesses share."""

from __future__ import annotations

from tango_core.benchmarks.scoring.multiple_choice import lettered
from tango_core.types import Question

LETTER_ONLY = (
    "Select the best answer to the following multiple-choice question based on the video. Respond "
    "with only the letter (A, B, C, D, E, F, G, or H) of the correct option."
)
# The quotation mark is not closed in the original either.
REASON_FIRST = (
    "Please perform a detailed reasoning based on the provided video frames to answer the "
    "following multiple-choice question selecting the best option from A through H and providing "
    "your final response strictly in the format: 'Final Answer: <letter>."
)
REASONING_TOKENS = 4096


def asked(question: Question, instruction: str) -> str:
    """Question, options and the instruction, which stands last here."""
    return "\n".join([f"Question: {question.text}", *lettered(question.choices), instruction])
