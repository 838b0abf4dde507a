"""DART, against LightCompress and by hand."""

import torch
from layer_contexts import recorded, recorded_context

from tango_core.compressors.in_llm.dart import DART

HALF = (2 + 26 * 0.5) / 28


def context_with_normed(states):
    """The recorded prompt with a norm that gives these (S, D) states row by row."""
    hidden = recorded()["hidden"][0]

    def norm(rows):
        return states[(rows[:, None] == hidden).all(dim=-1).int().argmax(dim=1)]

    return recorded_context(norm=norm)


def official_context():
    return context_with_normed(recorded()["dart/last_state_normed"][0])


def test_official_pivot_order_keeps_the_tokens_of_the_release():
    pruned = DART(retention=HALF, pivot_order="official").prune(official_context())
    assert pruned.keep[7:-12].tolist() == recorded()["dart/kept_r0.5"].tolist()


def test_a_token_is_taken_once_even_where_all_are_alike():
    states = 5 + recorded()["dart/last_state_normed"][0]
    context = context_with_normed(states)
    pruned = DART(retention=HALF).prune(context)
    assert len(pruned.keep) - 19 == len(pruned.keep.unique()) - 19 == 20


def test_fewer_tokens_than_pivots_all_stay():
    hidden = recorded()["hidden"][0]
    for num_visual in (1, 3):
        context = recorded_context(
            hidden=hidden[: 7 + num_visual + 2],
            visual=torch.arange(7, 7 + num_visual),
            after=7 + num_visual,
            num_visual=num_visual,
            keys=lambda num_visual=num_visual: hidden[: 7 + num_visual + 2],
        )
        assert DART(retention=0.1).prune(context).keep.tolist() == list(range(9 + num_visual))
