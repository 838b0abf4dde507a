"""The "A" of a sentence: the letter of an option where no article can stand, else an article.

Sentences of the first list are read with every letter, so that A is no worse off than the others.
"""

import pytest

from tango_core.benchmarks.scoring.multiple_choice import read_option

CHOICES = ("walking", "running", "jumping", "sitting")

LETTERS = [
    # Verbs in the third person: a plural, if a noun at all.
    "{} matches the video",
    "{} matches what he does",
    "{} fits best because he moves slowly",
    "{} fits.",
    "{} describes the scene",
    "{} depicts what happens",
    "{} shows what happens",
    "{} represents the action",
    "{} reflects what is seen",
    "{} captures the action",
    "{} corresponds to the action",
    "{} aligns with the video",
    "{} answers the question",
    "{} explains it",
    "{} appears to be right",
    "{} looks right",
    "{} makes the most sense",
    "{} has the right verb",
    "{} could be right",
    "I think {} matches the video",
    "Option {} fits what is shown",
    # Adverbs, if such a verb follows.
    "{} best describes the scene",
    "{} best matches the video",
    "{} most closely matches the clip",
    "{} correctly describes it",
    "{} clearly shows it",
    "{} also fits",
    # Words that begin something else.
    "{} according to the clip",
    "{} because of his speed",
    "{} if I see it right",
    "{} Based on the clip",
    "{} According to the clip",
    "{} We see his steps",
    "{} His steps are slow",
]

ARTICLES = [
    "A man shows a card",
    "A matching pair of shoes",
    "A fitting end",
    "A fit man stretches",
    "A match is lit",
    "A show begins",
    "A description of the scene",
    "A best friend waves",
    "A better view of the room",
    "A most unusual dog",
    "A just ruler",
    "A clearly visible dog",
    "A slowly moving dog",
    "A correctly parked car",
    "A family has a picnic",
    "A butterfly appears",
    "A bully shows his fists",
    "A rally is held",
    "A while later he waves",
    "A given day",
    "A due date is shown",
    "A judging panel claps",
    "A like button",
    "A works council meets",
    "A means to an end",
    "A sports car",
    "A series of dots",
    "A will is read aloud",
    "A can of paint",
    "A must for everyone",
    "A being from space",
    "A before picture is shown",
    "A fits-all solution",
    "A her-story exhibit",
    "A CUDA error occurred",
    "I see A man who waves",
    "The answer is A slowly moving dog.",
]


@pytest.mark.parametrize("letter", "ABCD")
@pytest.mark.parametrize("reply", LETTERS)
def test_a_letter_is_read_where_no_article_can_stand(reply, letter):
    assert read_option(reply.format(letter), CHOICES) == "ABCD".index(letter)


@pytest.mark.parametrize("reply", ARTICLES)
def test_an_article_is_no_letter(reply):
    assert read_option(reply, CHOICES) is None


@pytest.mark.parametrize("reply", ["A does not match it", "A cannot be right", "A is wrong"])
def test_a_letter_that_is_denied_is_not_read_for_its_verb(reply):
    assert read_option(reply, CHOICES) is None


@pytest.mark.parametrize(
    "reply", ["A shows one thing and B shows another", "B fits but A fits better"]
)
def test_two_letters_with_verbs_name_no_option(reply):
    assert read_option(reply, CHOICES) is None
