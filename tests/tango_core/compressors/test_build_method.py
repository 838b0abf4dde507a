"""Names, options and hybrids; options that cannot be are refused in one line."""

import pytest
import torch

from tango_core.compressors import METHODS, build_method, equivalent_retention
from tango_core.compressors.hybrid import outer_retention
from tango_core.compressors.in_llm.fastv import FastVMerge
from tango_core.compressors.options import option_names

DAGGER = {"name": "fastv-merge", "layer": 18, "retention": 0.5}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pyramiddrop", {"stages": [7, 14, 21]}, r"0\.1 .*stages=\(7, 14, 21\).*raise ret"),
        ("pyramiddrop", {"retention": 0.5, "stages": [7, 14, 28]}, "do not fit .* of 28 layers"),
        ("pyramiddrop", {"stages": [7, 7, 21]}, "stages must ascend"),
        ("pyramiddrop", {"stages": [7, 14]}, r"one layer per ratio \(3\)"),
        ("pyramiddrop", {"stages": 7}, "stages must be a list"),
        ("pyramiddrop", {"ratios": [0.5, 0.6, 0.1]}, "must not increase"),
        ("sparsevlm", {"stages": [3, 7, 16]}, r"retention 0\.1 .*0\.107143; lower the first"),
        ("sparsevlm", {"retention": 0.03}, r"retention 0\.03 .*stages=\(1, 7, 16\).*0\.0357143"),
        ("sparsevlm", {"stages": [0, 7, 16]}, "ascend from 1 or larger"),
        ("sparsevlm", {"recycled": 1.5}, r"recycled must be in \[0, 1\]"),
        ("sparsevlm", {"ratios": [0.5]}, "3 numbers unless stages are given"),
        ("fastv", {"layer": 3}, r"retention 0\.1 .*layer=3.*0\.107143"),
        ("flashvid", {"link_tau": 1.0}, r"link_tau must be in \[-1, 1\)"),
        ("flashvid", {"selection": "v3"}, "must be one of 'v2', 'v1', 'div', 'attention'"),
        ("flashvid", {"inner": "publshed"}, "inner must be"),
        ("flashvid", {"selection": "v1", "stop": {}}, "stop is defined for selection"),
        ("visionzip", {"stop": {"spatail": 1.0}}, "visionzip.stop.*no option 'spatail'; did you"),
        ("visionzip", {"stop": {"spatial": -1.0}}, "stop.spatial must be 0 or larger"),
        ("fastvid", {"stop": {"temporal": 0.1}}, "stop.temporal must be 0 for fastvid"),
        ("fastvid", {"anchor_stride": 0}, "^anchor_stride must be"),
        ("holitom", {"stop": {"gamma": 0.0}}, "stop.gamma must be in"),
        ("holitom", {"stop": 0.04}, "stop must be a mapping of settings"),
        ("holitom", {"beta": -0.1}, "^beta must be"),
        ("prunevid", {"tau": 1.5}, "^tau must be"),
        ("prunevid", {"temporal_ratio": 0.0}, "^temporal_ratio must be"),
        ("vcast", {"temperature": float("nan")}, "temperature must be from 1e-6 to 1e6"),
        ("block", {"factor": 0}, "factor"),
        ("dart", {"retention": 0.5, "visual_pivots": 0}, "visual_pivots"),
        ("uniform", {"retntion": 0.1}, r"no option 'retntion'.*its options are"),
        ("tango", {"tau": 1.5}, r"tau must be in \[-1, 1\], got 1.5"),
        ("tango", {"alpha": 0.5}, "alpha must be 1 or larger"),
        ("tango", {"num_neighbors": 7.5}, "num_neighbors must be a whole number"),
        ("tango", {"diverse": 1}, "diverse must be true or false"),
        ("tango", {"inner": {**DAGGER, "name": "fastv"}}, "'fastv'; did you mean 'fastv-merge'"),
        ("tango", {"inner": {"layer": 18}}, "unknown inner.name None"),
        ("tango", {"inner": {**DAGGER, "leyer": 3}}, "no option 'leyer'; did you mean 'layer'"),
        ("tango", {"inner": {**DAGGER, "layer": 28}}, "layer must be below .* 28 layers, got 28"),
        ("tango", {"inner": {**DAGGER, "retention": 0.0}}, r"retention must be in \(0, 1\]"),
        ("tango", {"inner": "fastv-merge"}, "inner must be a mapping of settings"),
    ],
)
def test_a_wrong_option_is_an_error_of_one_line(name, options, message):
    if "retention" in option_names(METHODS[name]):
        options = {"retention": 0.1, **options}
    with pytest.raises(ValueError, match=message) as error:
        build_method(name, **options)
    assert "\n" not in str(error.value)


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
