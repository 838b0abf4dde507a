"""Tango beyond the golden vectors: budgets, options, identities and edge cases."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.tango.method import Tango


def test_an_exact_budget_moves_what_a_frozen_segment_cannot_use():
    frozen = make_clip(8, (6, 6), "static")
    moving = make_clip(8, (6, 6), "noise", seed=1)
    features = make_clip(16, (6, 6), "noise")
    features.tokens[:8], features.tokens[8:] = frozen.tokens, moving.tokens
    retention = 0.4  # 115 tokens of each half, of which the frozen one has 36
    exact = Tango(retention, budget="exact").compress(features)
    official = Tango(retention).compress(features)
    assert exact.num_kept == round(retention * 16 * 36)
    assert int((exact.indices < 8 * 36).sum()) == 36
    assert int((official.indices < 8 * 36).sum()) == 36
    assert official.num_kept < exact.num_kept


def test_official_rounding_overshoots_small_grids_and_undershoots_frozen_clips():
    noise = Tango(0.05).compress(make_clip(8, (6, 6), "noise"))
    assert noise.num_kept == 8 * 2  # ceil(36 * 0.05) in every frame
    frozen = Tango(0.2).compress(make_clip(8, (6, 6), "static"))
    assert frozen.num_kept == 36
    assert Tango(0.05, budget="exact").compress(make_clip(8, (6, 6), "noise")).num_kept == 14


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("diverse", False),
        ("st_rope", False),
        ("timestamps", False),
        ("alpha", 2.5),
        ("num_neighbors", 2),
        ("beta", 0.0),
        ("base_time", 10.0),
        ("base_space", 10.0),
        ("score", "attention"),
        ("segmentation", "dyseg"),
        ("context_ratio", 0.8),
        ("tau", 0.999),
        ("static_tau", 0.999),
        ("sinks", "ignore"),
        ("legacy_writeback", True),
        ("budget", "exact"),
    ],
)
def test_every_option_changes_the_result_and_the_identity(option, value):
    features = make_clip(num_frames=8, grid=(7, 7), kind="scene", seed=3)
    features.saliency[:, list(features.sinks)] = 1.0  # sinks outrank everything
    default = Tango(0.2)
    other = Tango(0.2, **{option: value})
    ours, theirs = default.compress(features), other.compress(features)
    same = torch.equal(ours.indices, theirs.indices) and torch.equal(ours.tokens, theirs.tokens)
    assert not same
    assert default.identity() != other.identity()


@pytest.mark.parametrize(
    ("retention", "sinks", "keeps_sinks"),
    [
        (0.1, "ignore", True),
        (0.1, "zero", False),
        (0.9, "zero", True),  # candidates reach the zeros, and a cluster may hold nothing else
        (0.1, "exclude", False),
        (0.9, "exclude", False),
    ],
)
def test_sinks_are_kept_only_where_asked(retention, sinks, keeps_sinks):
    features = make_clip(kind="noise", grid=(5, 5))
    features.saliency[:, list(features.sinks)] = 1.0
    tango = Tango(retention, context_ratio=0.0, sinks=sinks)
    kept = set((tango.compress(features).indices % 25).tolist())
    assert bool(kept & set(features.sinks)) == keeps_sinks


def test_settings_that_give_the_same_tokens_have_the_same_identity():
    assert Tango(0.1).identity() == Tango(0.1, tau=0.65).identity()
    inner = {"name": "fastv-merge", "layer": 18, "retention": 0.5}
    hybrid = build_method("tango", retention=0.1, inner=inner).compressor
    plain = Tango(hybrid.outer_retention, tau=0.65)
    assert hybrid.identity() == plain.identity()
    features = make_clip(kind="noise")
    assert torch.equal(hybrid.compress(features).tokens, plain.compress(features).tokens)
    assert Tango(0.1).identity() != Tango(0.1, tau=0.8).identity()


def test_an_excluded_sink_keeps_the_size_of_the_budget():
    features = make_clip(kind="noise", grid=(5, 5))
    for retention in (0.1, 0.5, 0.95):
        kept = {
            m: Tango(retention, sinks=m).compress(features).num_kept for m in ("zero", "exclude")
        }
        assert kept["zero"] == kept["exclude"]


@given(
    seed=st.integers(0, 1000),
    num_frames=st.integers(1, 9),
    grid=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    kind=st.sampled_from(["scene", "noise", "duplicates"]),
    retention=st.floats(0.01, 0.99),
    context_ratio=st.sampled_from([0.0, 0.4, 1.0]),
    sinks=st.sampled_from(["zero", "exclude"]),
)
@settings(max_examples=60, deadline=None)
def test_an_exact_budget_is_met_or_everything_distinct_is_kept(
    seed, num_frames, grid, kind, retention, context_ratio, sinks
):
    features = make_clip(num_frames, grid, kind, seed=seed)
    tango = Tango(retention, budget="exact", context_ratio=context_ratio, sinks=sinks)
    total = num_frames * grid[0] * grid[1]
    everything = Tango(0.9999, budget="exact").compress(features).num_kept
    wanted = max(1, round(retention * total))
    kept = tango.compress(features).num_kept
    assert kept == wanted or (kept < wanted and kept >= everything - 1)
