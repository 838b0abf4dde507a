"""What can be guessed of the embedded world's questions without the video: nothing."""

from collections import Counter, defaultdict

import numpy as np
import pytest


def accuracy(guess, held_out):
    return np.mean([guess(q) == q.answer for q in held_out])


class TestWhoSeesNothing:
    """Every strategy without the video stays at chance, within three standard errors."""

    def near_chance(self, guess, held_out):
        assert len(held_out) >= 1750
        assert accuracy(guess, held_out) == pytest.approx(0.25, abs=0.03)

    @pytest.mark.parametrize("letter", range(4))
    def test_one_letter_always(self, letter, held_out):
        self.near_chance(lambda q: letter, held_out)

    def test_the_most_frequent_answer_of_the_type(self, held_out, training):
        counts = defaultdict(Counter)
        for q in training:
            counts[q.groups["type"]][q.choices[q.answer]] += 1

        def guess(q):
            known = counts[q.groups["type"]]
            return max(range(4), key=lambda i: known[q.choices[i]])

        self.near_chance(guess, held_out)

    def test_the_answer_most_often_right_when_offered(self, held_out, training):
        right, offered = Counter(), Counter()
        for q in training:
            for index, choice in enumerate(q.choices):
                offered[q.text, choice] += 1
                right[q.text, choice] += index == q.answer

        def guess(q):
            rates = [(right[q.text, c] + 1) / (offered[q.text, c] + 4) for c in q.choices]
            return int(np.argmax(rates))

        self.near_chance(guess, held_out)
