"""Replies to free-form questions against accepted answers; comments say why they read so."""

import pytest

from tango_core.benchmarks.scoring.free_form import matches
from tango_core.types import Question


@pytest.mark.parametrize(
    ("reply", "accepted", "exact", "contains"),
    [
        ("a red cup", ("a red cup",), True, True),
        (" A RED  cup.\n", ("a red cup",), True, True),  # capitals, spaces, a full stop
        ('**"A red cup"**', ("a red cup",), True, True),  # decoration
        ("He holds a red cup, I think.", ("a red cup",), False, True),  # a sentence
        ("red cup", ("a red cup",), False, False),  # less than the answer
        ("the cup is red", ("red cup",), False, False),  # other order
        ("a red, large cup", ("red cup",), False, False),  # not one after the other
        ("a hundred cups", ("red",), False, False),  # inside a word
        ("a mug", ("a cup", "a mug"), True, True),  # any of several
        ("It is a mug or a glass.", ("cup", "mug"), False, True),
        ("3.5", ("5",), False, False),  # a number is one word
        ("3.5 seconds", ("3.5",), False, True),
        ("-5", ("5",), False, False),  # a sign is a part of a number
        ("- 5", ("5",), True, True),  # a bullet is none
        ("-red", ("red",), True, True),
        ("C++", ("C",), False, False),
        ("50%", ("50%",), True, True),
        ("STRASSE", ("Straße",), True, True),
        ("cafe\u0301", ("caf\u00e9",), True, True),  # the same letter, written in two ways
        ("\uff22\u3002", ("B",), True, True),  # full width
        ("\u4ed6\u62ff\u7740\u624b\u673a\u3002", ("\u624b\u673a",), False, True),  # no spaces
        ("\u624b\u673a\u3002", ("\u624b\u673a",), True, True),
        ("the man\u2019s hat", ("the man's hat",), True, True),  # one apostrophe
        ("It is red\u2014a dark red", ("red",), False, True),  # a dash between words
        ("", ("red",), False, False),
        ("...", ("red",), False, False),
        ("CUDA error: out of memory", ("red",), False, False),
        ("It is not red.", ("red",), False, True),  # documented: nothing is judged
    ],
)
def test_words_decide(reply, accepted, exact, contains):
    for match, expected in (("exact", exact), ("contains", contains)):
        question = Question("q", "What?", accepted=accepted, match=match)
        assert matches(reply, question) is expected
