"""Replies as models really write them, and what may be read from them."""

import json
from itertools import permutations
from pathlib import Path

import pytest

from tango_core.benchmarks.scoring import multiple_choice
from tango_core.benchmarks.scoring.multiple_choice import read_option

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


@pytest.mark.parametrize("reply", ["A does not match it", "A cannot be right", "A is wrong"])
def test_a_letter_that_is_denied_is_not_read_for_its_verb(reply):
    assert read_option(reply, VERBS) is None


@pytest.mark.parametrize(
    "reply", ["A shows one thing and B shows another", "B fits but A fits better"]
)
def test_two_letters_with_verbs_name_no_option(reply):
    assert read_option(reply, VERBS) is None
