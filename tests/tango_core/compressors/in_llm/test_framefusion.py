"""FrameFusion: merging along time, and the budget."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from tango_core.compressors.contract.inputs import SyntheticPrompt, run_layers
from tango_core.compressors.in_llm.framefusion import FrameFusion


def fused_by_definition(context, threshold):
    """Merging at one layer, place by place and frame by frame; {position: state}."""
    _, height, width = context.grid
    original = context.visual_indices.tolist()
    places, cell = {}, 0
    for token, number in enumerate(context.previous_visual.tolist()):
        index = original[number]
        before = max([0, *original[: number + 1]])
        cell = (
            index % (height * width) if index >= 0 else f"row {before % (height * width) // width}"
        )
        places.setdefault(cell, []).append(int(context.visual[token]))
    states = {}
    for positions in places.values():
        run = []
        for before, position in zip([None, *positions], positions, strict=False):
            similar = before is not None and (
                torch.cosine_similarity(context.hidden[before], context.hidden[position], dim=0)
                >= threshold
            )
            if not similar:
                run = []
                states[position] = run
            run.append(context.hidden[position])
    return {position: torch.stack(run).mean(dim=0) for position, run in states.items()}


@pytest.mark.parametrize("newlines", ["none", "end", "rows"])
def test_runs_of_similar_tokens_at_a_place_become_their_mean_at_the_first(newlines):
    prompt = SyntheticPrompt(grid=(8, 3, 4), change=0.8, newlines=newlines)
    pruner = FrameFusion(retention=0.05, similarity=0.8)
    _, calls = run_layers(pruner, 28, prompt)
    context, pruned = calls[0]
    expected = fused_by_definition(context, 0.8)
    assert len(expected) < context.num_left
    assert pruned.keep[3:-5].tolist() == sorted(expected)
    states = torch.stack([expected[position] for position in sorted(expected)])
    torch.testing.assert_close(pruned.hidden[3:-5], states, rtol=1e-5, atol=1e-6)
    assert torch.equal(pruned.hidden[-5:], context.hidden[-5:])


@pytest.mark.parametrize("retention", [0.05, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_counts_average_to_the_retention(retention):
    for change, min_merged in product([0.0, 0.3, 0.8, 1.0, 3.0], [0.0, 0.1, 1.0]):
        prompt = SyntheticPrompt(grid=(12, 5, 5), change=change)
        counts, _ = run_layers(FrameFusion(retention=retention, min_merged=min_merged), 28, prompt)
        assert counts == sorted(counts, reverse=True), (change, min_merged)
        assert sum(counts) / 28 == pytest.approx(retention * 300, abs=1), (change, min_merged)


def test_a_frozen_clip_loses_exactly_the_most_similar_and_is_never_cut():
    counts, calls = run_layers(
        FrameFusion(retention=0.3), 28, SyntheticPrompt(grid=(10, 3, 3), change=0.0)
    )
    assert counts == [27] * 28
    assert all(len(pruned.keep) == len(context.hidden) for context, pruned in calls[1:])


def test_a_clip_without_repetition_is_cut_once_by_attention():
    prompt = SyntheticPrompt(grid=(4, 5, 5), change=9.0)
    pruner = FrameFusion(retention=0.3, similarity=0.99)
    counts, calls = run_layers(pruner, 28, prompt)
    assert counts == [100] + [round((0.3 * 28 * 100 - 100) / 27)] * 27
    context, pruned = calls[1]
    last = torch.tensor([len(context.hidden) - 1])
    scores = context.attention(last)[:, 0, context.visual].mean(0)
    best = scores.sort(descending=True, stable=True).indices[: counts[1]].sort().values
    assert pruned.keep[3:-5].tolist() == (best + 3).tolist()


def test_a_budget_that_merging_would_overrun_is_cut_at_once():
    # Merging leaves 40 tokens and may not end, so they fill 17 layers; 37 are left for 11 layers.
    prompt = SyntheticPrompt(grid=(64, 2, 2), change=0.7)
    counts, _ = run_layers(FrameFusion(retention=0.1, similarity=0.95, min_merged=0.0), 28, prompt)
    assert counts == [40] * 17 + [3] * 11


@pytest.mark.parametrize(
    ("retention", "layer", "cut"),
    [(0.3, 2, 1), (0.44, 2, 1), (0.46, 2, 2), (0.9, 2, 2), (0.9, 1, 1), (0.9, 0, 1), (0.9, 5, 3)],
)
def test_the_cut_waits_for_its_layer_where_the_target_allows(retention, layer, cut):
    pruner = FrameFusion(retention=retention, layer=layer, similarity=1.0)  # nothing is that alike
    counts, _ = run_layers(pruner, 28, SyntheticPrompt(grid=(8, 3, 4)))
    assert next(index for index, count in enumerate(counts) if count < counts[0]) == cut
    assert sum(counts) / 28 == pytest.approx(retention * counts[0], abs=1)


@pytest.mark.parametrize("newlines", ["none", "rows"])
def test_the_second_layer_compares_with_what_is_left_of_a_place(newlines):
    prompt = SyntheticPrompt(grid=(16, 3, 4), change=0.8, newlines=newlines)
    _, calls = run_layers(FrameFusion(retention=0.05, similarity=0.95, min_merged=0.0), 28, prompt)
    context, pruned = calls[1]
    expected = fused_by_definition(context, 0.95)
    assert len(expected) < context.num_left < context.num_visual
    assert pruned.keep[3:-5].tolist() == sorted(expected)
    many = FrameFusion(retention=0.05, similarity=0.7).prune(replace(context, scratch={}))
    assert many.keep[3:-5].tolist() == sorted(fused_by_definition(context, 0.7))
