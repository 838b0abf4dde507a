"""Replies as models really write them, and what may be read from them."""

import json
from itertools import permutations
from pathlib import Path

import pytest

from tango_core.benchmarks.scoring import multiple_choice
from tango_core.benchmarks.scoring.judge import matches, read_span
from tango_core.benchmarks.scoring.multiple_choice import read_option
from tango_core.types import Question

REPLIES = json.loads((Path(__file__).parent / "replies.json").read_text())
ANIMALS = ("A dog", "A cat", "A horse", "No animal")


def test_general_reading():
    for choices, reply, choice in REPLIES["general"]:
        assert multiple_choice.read_option(reply, choices) == choice, reply


def test_equal_options_are_both_mentioned():
    assert multiple_choice.mentioned("red it is", ("red", "red")) == [0, 1]


def test_strict_reading_takes_only_a_letter_in_front():
    for reply, choice in REPLIES["strict"]:
        assert multiple_choice.read_letter(reply, 4) == choice, reply


def test_two_letters_name_no_option():
    for one, other in permutations("ABCD", 2):
        assert multiple_choice.read_option(f"{one} {other}", ANIMALS) is None
        assert multiple_choice.read_option(f"{one}\n{other}", ANIMALS) is None
        last = f"Answer: {one}\nAnswer: {other}"
        assert multiple_choice.read_option(last, ANIMALS) == "ABCD".index(other)


LABELLED = json.loads((Path(__file__).parent / "labelled_replies.json").read_text())


def test_replies_of_the_shapes_that_models_write():
    """Before version 0.2 81 of the 95 that name an option were read, and four of them wrongly."""
    for family, reply, choice in LABELLED["replies"]:
        found = multiple_choice.read(reply, LABELLED["choices"], letters_first=True)
        assert found.choice == choice, (family, reply)
        assert (found.rule in multiple_choice.RULES) == (choice is not None), (family, reply)


@pytest.mark.parametrize(
    ("reply", "rule"),
    [
        ("A cat", "text"),
        ("B. A cat", "letter"),
        ("It purrs.\n\nB", "line"),
        ("It purrs, so the answer is B.", "marker"),
        ("It shows (B), nothing else", "brackets"),
        ("I go with B.", "sentence"),
        ("There is a cat on the wall", "mention"),
        ("B or C", ""),
        ("It purrs", ""),
    ],
)
def test_the_rule_that_decided_is_named(reply, rule):
    assert multiple_choice.read(reply, ANIMALS).rule == rule


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<think>a</think> B", " B"),
        ("a</think>b</think>c", "c"),
        ("<think>never closed", ""),
        ("[THINK]a[/THINK]b", "b"),
        ("x <answer>b</answer> y", "b"),
        ("\\boxed{a} then \\boxed{\\text{b}}", "b"),
        ("**b** `c`", "b c"),
        ("\uff22", "B"),
        ("no tag", "no tag"),
    ],
)
def test_only_what_is_behind_the_reasoning_is_the_answer(reply, answer):
    assert multiple_choice.answer_part(reply) == answer


VERBS = ("walking", "running", "jumping", "sitting")


def test_a_letter_is_read_where_no_article_can_stand():
    """Read with every letter, so that A is no worse off than the others."""
    for reply in REPLIES["letters"]:
        found = [multiple_choice.read_option(reply.format(letter), VERBS) for letter in "ABCD"]
        assert found == [0, 1, 2, 3], reply


def test_an_article_is_no_letter():
    assert [
        reply
        for reply in REPLIES["articles"]
        if multiple_choice.read_option(reply, VERBS) is not None
    ] == []


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        ("({}) is wrong, (D) is right", 3),
        ("Option {} is not correct, it is D", 3),
        ("{} isn't shown, but D is", 3),
        ("D rather than {}", 3),
        ("D instead of option {}", 3),
        ("{} is incorrect", None),
        ("The answer cannot be {}", None),
    ],
)
def test_a_letter_that_is_denied_names_no_option(reply, named):
    assert [read_option(reply.format(letter), ANIMALS) for letter in "ABC"] == [named] * 3


@pytest.mark.parametrize(
    "reply",
    [
        *("A does not match it", "A cannot be right", "A is wrong"),
        *("A shows one thing and B shows another", "B fits but A fits better"),
    ],
)
def test_a_letter_that_is_denied_or_one_of_two_is_not_read_for_its_verb(reply):
    assert read_option(reply, VERBS) is None


@pytest.mark.parametrize(
    "reply",
    [
        "24,3 - 30,4",
        "1,024.5 - 1,030.0",
        "00:00:03,500 - 00:00:05,000",
        "1e2 - 2e2",
        "1m5s - 1m9s",
        "24.3 - 30.4 minutes",
        "frames 10 to 20 frames",
        "10 - 20 %",
        "3 to 5 to 7",
        "[[1, 2], [3, 4]]",
        "24.3-30.4 seconds. So 24 to 30.",
        "1 - 2 - 3",
        "3.5.1 - 4",
        "person turn 2 lights on",
        "",
    ],
)
def test_what_is_no_span_in_seconds_is_not_read_as_one(reply):
    assert read_span(reply) is None


@pytest.mark.parametrize(
    "reply",
    [
        "3s-5.5s",
        "[3,5.5]",
        "( 3 s, 5.5 s )",
        '{"start":3,"end":5.5}',
        "from 0:03 until 0:05.5 s.",
        "between 3 and 5.5 s",
        "3-5.5 seconds. So 3 to 5.5.",
    ],
)
def test_a_span_in_seconds_is_read_as_before(reply):
    assert read_span(reply) == (3.0, 5.5)


def test_clock_times_have_hours():
    assert read_span("from 1:02:03.5 until 1:02:09") == (3723.5, 3729.0)


def test_a_span_inside_the_reasoning_is_not_the_answer():
    assert read_span("<think>Maybe 1.0 - 2.0, or 5 to 6.</think>\n24.3 - 30.4") == (24.3, 30.4)
    assert read_span("<think>Maybe 1.0 - 2.0") is None


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
        ("3.5", ("5",), False, False),  # a number is one word
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
        ("It is not red.", ("red",), False, True),  # documented: nothing is judged
    ],
)
def test_words_decide(reply, accepted, exact, contains):
    for match, expected in (("exact", exact), ("contains", contains)):
        question = Question("q", "What?", accepted=accepted, match=match)
        assert matches(reply, question) is expected
