"""SparseVLM: raters, ranking, budgets and recycling."""

from itertools import product

import pytest
import torch

from tango_core.compressors.contract.inputs import SyntheticPrompt, attention_of, run_layers
from tango_core.compressors.in_llm.sparsevlm import SparseVLM

STAGES = (3, 7, 16)


def test_published_layers_and_table():
    published = (3 + 4 * 300 / 576 + 9 * 200 / 576 + 12 * 110 / 576) / 28
    assert SparseVLM(retention=published).schedule(28) == pytest.approx(
        {3: 300 / 576, 7: 200 / 576, 16: 110 / 576}
    )


def test_a_stage_keeps_as_many_as_leave_room_for_what_is_recycled():
    # The release keeps 300 of 576; int(0.3 * 276) + 1 = 83 dropped ones become 83 // 10 + 1 = 9.
    assert SparseVLM(retention=0.5)._recycling(576, 309) == (9, 83)


@pytest.mark.parametrize("retention", [0.1, 0.15, 0.2, 0.3, 0.5, 0.9, 1.0])
def test_counts_average_to_the_retention(retention):
    prompt = SyntheticPrompt(grid=(6, 7, 7), dim=8)
    for num_layers, recycled in product([28, 40], [0.0, 0.3, 1.0]):
        pruner = SparseVLM(retention=retention, recycled=recycled)
        counts, _ = run_layers(pruner, num_layers, prompt)
        average = sum(counts) / num_layers
        assert average == pytest.approx(retention * 294, abs=0.5), (num_layers, recycled)


def test_a_shallow_model_has_the_same_parts():
    assert SparseVLM(retention=0.5).layers(8) == (0, 1, 2, 4)


def raters_by_definition(hidden, start, stop):
    relevance = torch.zeros(len(hidden) - stop)
    for token in hidden[start:stop]:
        relevance += (hidden[stop:] @ token).softmax(dim=0) / (stop - start)
    return [stop + i for i, value in enumerate(relevance) if value > relevance.mean()]


def test_raters_are_text_tokens_that_match_the_clip_and_rank_by_their_mean_attention():
    prompt = SyntheticPrompt(right=9, scale=0.3)
    raters = raters_by_definition(prompt.hidden(), 3, 39)
    assert 1 < len(raters) < 9
    _, calls = run_layers(SparseVLM(retention=0.375, stages=STAGES, recycled=0), 28, prompt)
    assert [context.layer for context, _ in calls] == [0, *STAGES]
    _, pruned = calls[1]
    scores = attention_of(2, 47)(torch.tensor(raters))[..., 3:39].mean(dim=(0, 1))
    best = scores.sort(descending=True, stable=True).indices[: len(pruned.keep) - 12].sort().values
    assert pruned.keep[3:-9].tolist() == (best + 3).tolist()
    later, _ = calls[2]
    moved = [rater - 36 + later.num_left for rater in raters]
    assert later.scratch["sparsevlm.raters"].tolist() == [i - later.after for i in moved]


def test_a_single_text_token_rates_alone():
    counts, calls = run_layers(SparseVLM(retention=0.3), 28, SyntheticPrompt(right=1))
    assert calls[0][0].scratch["sparsevlm.raters"].tolist() == [0]
    assert counts[-1] < counts[0]


def centers_by_definition(states, num_centers):
    """Density peaks with the release's scale and neighbours, point by point."""
    distances = torch.cdist(states, states, compute_mode="donot_use_mm_for_euclid_dist")
    distances = distances / states.shape[1] ** 0.5
    density = [(-row.sort().values[:num_centers].square().mean()).exp() for row in distances]
    score = []
    for own, row in zip(density, distances, strict=True):
        denser = [gap for gap, other in zip(row, density, strict=True) if other > own]
        score.append(own * min(denser, default=distances.max()))
    return torch.stack(score).argsort(descending=True)[:num_centers]


def test_recycled_tokens_are_means_at_the_place_of_their_centre():
    prompt = SyntheticPrompt(grid=(6, 5, 5))
    _, calls = run_layers(SparseVLM(retention=0.375, stages=STAGES), 28, prompt)
    context, pruned = calls[1]
    clusters, pool_size = SparseVLM(retention=0.375)._recycling(150, len(pruned.keep) - 8)
    assert clusters > 1
    rows = context.scratch["sparsevlm.raters"] + context.after
    ranked = context.attention(rows)[..., context.visual].mean(dim=(0, 1)).argsort(descending=True)
    kept = len(pruned.keep) - 8 - clusters
    pool = ranked[kept : kept + pool_size].sort().values
    unchanged = (pruned.hidden == context.hidden[pruned.keep]).all(dim=-1)
    assert set((ranked[:kept] + 3).tolist()) <= set(pruned.keep[unchanged].tolist())
    centers = sorted(set(pruned.keep[3:-5].tolist()) - set((ranked[:kept] + 3).tolist()))
    assert len(centers) == clusters
    assert set(centers) <= set((pool + 3).tolist())
    states = context.hidden[pool + 3]
    assert centers == sorted((pool[centers_by_definition(states, clusters)] + 3).tolist())
    nearest = torch.cdist(states, context.hidden[centers]).argmin(dim=-1)
    for number, center in enumerate(centers):
        mean = states[nearest == number].mean(dim=0)
        row = pruned.hidden[pruned.keep == center][0]
        torch.testing.assert_close(row, mean, rtol=1e-5, atol=1e-6)
