"""What survives of objects: by hand, against brute force over all sets, and for every method."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from tango_core.analysis.evidence import best_for_all, left_of, object_shares
from tango_core.combination import Combination
from tango_core.compressors import build_method
from tango_core.types import VisualFeatures

TIMES = torch.arange(2, dtype=torch.float64)


def selection(*indices):
    return Combination(torch.tensor(indices), (2, 2, 2), TIMES)


def merged(kept):
    """A plan from {kept position: {source: weight}}."""
    sources = [list(own) for own in kept.values()]
    return Combination(
        torch.tensor(list(kept)),
        (2, 2, 2),
        TIMES,
        offsets=torch.tensor([0, *np.cumsum([len(own) for own in sources])]),
        sources=torch.tensor([one for own in sources for one in own]),
        weights=torch.tensor([w for own in kept.values() for w in own.values()]),
    )


def object_at(*positions):
    mask = torch.zeros(1, 8, dtype=torch.bool)
    mask[0, list(positions)] = True
    return mask


def test_a_selection_keeps_the_share_that_it_selects():
    (found,) = left_of(selection(1, 2, 5), object_at(1, 2, 3, 4))
    assert (found.num_tokens, found.share, found.purest) == (4, 0.5, 1.0)
    assert found.best == 0.75  # three tokens of four
    assert not found.gone
    (found,) = left_of(selection(0, 7), object_at(1, 2))
    assert (found.share, found.purest, found.best) == (0.0, 0.0, 1.0)
    assert found.gone


def test_a_merged_token_counts_with_the_weight_of_the_object():
    plan = merged({0: {0: 0.6, 1: 0.4}, 5: {5: 0.25, 6: 0.75}})
    (found,) = left_of(plan, object_at(1, 5))
    assert found.share == pytest.approx((0.4 + 0.25) / 2)
    assert found.purest == pytest.approx(0.4)
    assert found.gone
    (found,) = left_of(plan, object_at(6))
    assert found.share == pytest.approx(0.75)
    assert not found.gone


def test_the_average_of_an_objects_tokens_is_one_of_its_tokens():
    (found,) = left_of(merged({3: {3: 0.25, 4: 0.25, 5: 0.25, 6: 0.25}}), object_at(3, 4, 5, 6))
    assert found.share == pytest.approx(0.25)
    assert found.purest == pytest.approx(1.0)


def test_the_best_set_is_the_best_of_all_sets():
    rng = np.random.default_rng(0)
    for number in (1, 2, 4):
        objects = torch.tensor(rng.random((3, 7)) < 0.4)
        objects[torch.arange(3), torch.arange(3)] = True
        sizes = objects.sum(dim=1)
        means = [
            float((objects[:, list(chosen)].sum(dim=1) / sizes).mean())
            for chosen in combinations(range(7), number)
        ]
        assert float(best_for_all(objects, number).mean()) == pytest.approx(max(means))


@pytest.mark.parametrize("name", ["tango", "topk", "fastvid", "holitom", "prunevid", "pool_space"])
def test_shares_of_every_method_lie_between_none_and_all(name):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(6, 16, 8, generator=generator)
    signals = {
        "saliency": torch.rand(6, 16, generator=generator),
        "attention": torch.rand(6, 16, generator=generator),
        "keys": torch.randn(6, 16, 4, generator=generator),
        "frame_embeddings": torch.randn(6, 5, generator=generator),
    }
    times = torch.arange(6, dtype=torch.float64)
    features = VisualFeatures(tokens, (4, 4), times, **signals)
    plan = build_method(name, retention=0.25).compressor.plan(features)
    everything = torch.ones(1, 96, dtype=torch.bool)
    torch.testing.assert_close(
        object_shares(plan, everything), torch.ones(1, plan.num_kept, dtype=torch.float64)
    )
    halves = torch.stack([torch.arange(96) < 48, torch.arange(96) >= 48])
    parts = left_of(plan, halves)
    assert sum(one.share * one.num_tokens for one in parts) == pytest.approx(plan.num_kept)
    assert all(0 <= one.share <= one.best <= 1 for one in parts)


def test_no_objects_are_no_results_and_an_empty_one_is_refused():
    assert left_of(selection(0), torch.zeros(0, 8, dtype=torch.bool)) == []
    with pytest.raises(ValueError, match="at least one token"):
        left_of(selection(0), torch.zeros(1, 8, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"must be \(Q, 8\)"):
        left_of(selection(0), torch.ones(1, 9, dtype=torch.bool))
