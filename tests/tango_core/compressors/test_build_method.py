"""Names, options and hybrids."""

import pytest
import torch

from tango_core.compressors import METHODS, build_method, equivalent_retention
from tango_core.compressors.hybrid import outer_retention
from tango_core.compressors.in_llm.fastv import FastVMerge

DAGGER = {"name": "fastv-merge", "layer": 18, "retention": 0.5}


def test_an_unknown_method_is_an_error_that_suggests_a_name():
    with pytest.raises(ValueError, match=r"unknown method 'tngo'; did you mean 'tango'\? choose"):
        build_method("tngo")
    with pytest.raises(ValueError, match=", ".join(sorted(METHODS))):
        build_method("nothing like it")


@pytest.mark.parametrize(
    ("target", "outer"), [(0.10, 0.121739), (0.15, 0.182609), (0.20, 0.243478)]
)
def test_the_outer_retention_of_a_hybrid_is_the_published_one(target, outer):
    method = build_method("tango", retention=target, inner=DAGGER)
    assert method.compressor.outer_retention == pytest.approx(outer, abs=5e-7)
    assert method.options["retention"] == target
    assert isinstance(method.pruner, FastVMerge)
    assert (method.pruner.layer, method.pruner.retention) == (18, 0.5)
    assert equivalent_retention(method) == pytest.approx(target)


def test_the_average_is_over_the_layers_of_the_model():
    method = build_method("tango", retention=0.1, inner={**DAGGER, "layer": 2}, num_layers=4)
    assert method.compressor.outer_retention == pytest.approx(0.1 / 0.75)
    assert equivalent_retention(method, num_layers=4) == pytest.approx(0.1)


def test_a_method_names_what_it_needs():
    with pytest.raises(ValueError, match="method 'uniform' needs retention"):
        build_method("uniform")


def test_a_target_above_what_all_tokens_average_to_is_an_error():
    with pytest.raises(ValueError, match=r"retention 0.9 cannot be reached.*average to 0.82"):
        build_method("tango", retention=0.9, inner=DAGGER)
    assert outer_retention(0.82142857, DAGGER) == pytest.approx(1.0)


def test_whole_numbers_become_fractions_so_that_identities_agree():
    one, other = (build_method("tango", beta=beta, retention=0.5) for beta in (1, 1.0))
    assert one.compressor.identity() == other.compressor.identity()
    assert isinstance(one.compressor.beta, float)


def test_random_differs_by_seed_and_not_by_call():
    from tango_core.compressors.contract.inputs import make_clip

    clip = make_clip(8, (6, 6))
    kept = [
        build_method("random", retention=0.2, seed=seed).compressor.compress(clip).indices
        for seed in (0, 0, 1)
    ]
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])
