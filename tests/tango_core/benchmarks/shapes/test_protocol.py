"""Prompts and replies about the embedded world."""

import pytest

from tango_core.benchmarks.scoring.multiple_choice import letter_of
from tango_core.benchmarks.shapes.questions import PROTOCOL, VOCABULARY, reply_to, words
from tango_core.types import Question


def test_every_word_is_in_the_vocabulary(training):
    known = set(VOCABULARY)
    assert len(known) == len(VOCABULARY)
    used = set()
    for question in training:
        prompt = PROTOCOL.render(question)
        used |= set(words(f"{prompt.before} {prompt.after} {reply_to(question)}"))
    assert used <= known
    lower = {word.lower() for word in used if len(word) > 1}
    assert lower <= known


@pytest.mark.parametrize(
    ("choice", "replies"),
    [
        (0, ["red A", "red A ", "A", "A. red"]),
        (1, ["top left B", "red B", "(b)", "blue", "A B"]),
        (2, ["It is pink."]),
        (3, ["The answer is D."]),
        (None, ["blue A red", "red E", "red blue", "green", "I cannot tell.", ""]),
        (None, ["CUDA error: out of memory"]),
    ],
)
def test_the_last_letter_decides_and_else_the_text(choice, replies):
    question = Question("q", "What color is the circle?", ("red", "blue", "pink", "cyan"), 0)
    assert {reply: PROTOCOL.read_choice(reply, question) for reply in replies} == dict.fromkeys(
        replies, choice
    )


def test_the_right_reply_reads_as_the_answer(training):
    for question in training[:300]:
        reply = reply_to(question)
        assert reply.endswith(f" {letter_of(question.answer)}")
        assert PROTOCOL.read_choice(reply, question) == question.answer
        assert PROTOCOL.read_choice(question.choices[question.answer], question) == question.answer
