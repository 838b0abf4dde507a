"""What survives of objects, and cosines to the nearest kept token: by hand and brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from tango_core.analysis import coverage
from tango_core.analysis.coverage import nearest_kept
from tango_core.analysis.evidence import best_for_all, surviving
from tango_core.benchmarks.shapes.questions import questions, sprites_asked, tokens_of
from tango_core.benchmarks.shapes.world import clip_at
from tango_core.combination import Combination
from tango_core.compressors import build_method
from tango_core.types import VisualFeatures

ORACLE = "tango_core.analysis.oracle:Oracle"
TIMES = torch.arange(2, dtype=torch.float64)


def selection(*indices):
    return Combination(torch.tensor(indices, dtype=torch.int64), (2, 2, 2), TIMES)


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


MERGED = merged({0: {0: 0.6, 1: 0.4}, 5: {5: 0.25, 6: 0.75}})


@pytest.mark.parametrize(
    ("plan", "tokens", "share", "best", "gone"),
    [
        (selection(1, 2, 5), (1, 2, 3, 4), 0.5, 0.75, False),  # the best: three tokens of four
        (selection(0, 7), (1, 2), 0.0, 1.0, True),
        # A merged token counts with the weight of the object.
        (MERGED, (1, 5), (0.4 + 0.25) / 2, 1.0, True),
        (MERGED, (6,), 0.75, 1.0, False),
        # The average of an object's tokens is one of its tokens.
        (merged({3: {3: 0.25, 4: 0.25, 5: 0.25, 6: 0.25}}), (3, 4, 5, 6), 0.25, 0.25, False),
        (selection(), (1,), 0.0, 0.0, True),
    ],
)
def test_shares_by_hand(plan, tokens, share, best, gone):
    found = surviving(plan, object_at(*tokens))
    assert float(found["share"]) == pytest.approx(share)
    assert float(found["best"]) == best
    assert bool(found["gone"]) is gone


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


@pytest.mark.parametrize("retention", [0.02, 0.1, 0.4])
def test_the_oracle_keeps_the_best_set_for_each_question(retention):
    clip = clip_at("test", 0, 3)
    times = torch.arange(8, dtype=torch.float64) + 0.25
    features = VisualFeatures(torch.randn(8, 64, 4), (8, 8), times)
    oracle = build_method(ORACLE, retention=retention).compressor
    without_object = 0
    for question in questions(clip):
        read = oracle.with_question(features, oracle.question_text(question), embed=None)
        plan = oracle.plan(read)
        assert plan.num_kept == round(512 * retention)
        sprites = sprites_asked(clip, question)
        shown = torch.from_numpy(tokens_of(clip, sprites, times.tolist(), (8, 8))).view(1, -1)
        if not shown.any():
            without_object += 1
            continue
        found = surviving(plan, shown)
        assert float(found["share"]) == float(found["best"])
        frames = {index // 64 for index in plan.indices.tolist()}
        assert frames >= set(shown.view(8, 64).any(dim=1).nonzero().flatten().tolist()[:10])
    assert without_object


def test_an_object_without_tokens_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        surviving(selection(0), torch.zeros(1, 8, dtype=torch.bool))


@pytest.mark.parametrize("name", ["full", "uniform", "divprune", "pool_time"])
def test_cosines_are_those_of_brute_force_in_blocks_too(name, monkeypatch):
    monkeypatch.setattr(coverage, "_AT_ONCE", 7)
    tokens = torch.randn(5, 12, 8, generator=torch.Generator().manual_seed(0))
    features = VisualFeatures(tokens, (3, 4), torch.arange(5, dtype=torch.float64))
    options = {} if name == "full" else {"retention": 0.4}
    video = build_method(name, **options).compressor.compress(features)
    whole, kept = (
        each / np.linalg.norm(each, axis=-1, keepdims=True)
        for each in (tokens.numpy(), video.tokens.numpy())
    )
    expected = np.einsum("tld,kd->tlk", whole, kept).max(axis=-1)
    np.testing.assert_allclose(nearest_kept(tokens, video).numpy(), expected, atol=1e-5)
