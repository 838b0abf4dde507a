"""What every entry of METHODS and every inner step promises, checked over the whole tables."""

from dataclasses import replace

import pytest
import torch

from tango_core.compressors import METHODS, build_method, equivalent_retention
from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.contract import FEW_RETENTIONS, RETENTIONS, check_method, checks
from tango_core.compressors.contract.inputs import (
    NUM_LAYERS,
    SyntheticPrompt,
    make_clip,
    run_layers,
)
from tango_core.compressors.hybrid import INNER, checked_inner
from tango_core.compressors.options import option_names
from tango_core.types import ClipSource

COMPRESSORS = sorted(name for name, cls in METHODS.items() if issubclass(cls, Compressor))
PRUNERS = sorted(name for name, cls in METHODS.items() if issubclass(cls, LayerPruner))
# The grid of three clips or prompts and three retentions, and all of it.
EXTENTS = [
    pytest.param(True, id="quick"),
    pytest.param(False, id="all", marks=pytest.mark.slow),
]


def _build(name, retention):
    """A method of the table at a retention; `full` and `block` have none to choose."""
    if name == "block":
        return build_method(name, factor=1 if retention == 1 else 2)
    takes_retention = "retention" in option_names(METHODS[name])
    return build_method(name, **({"retention": retention} if takes_retention else {}))


def _broken(results):
    """Promises that do not hold."""
    return [result for result in results if result.failure is not None]


@pytest.mark.parametrize("quick", EXTENTS)
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_keeps_what_every_method_promises(name, quick):
    assert _broken(check_method(name, quick=quick)) == []
    if name == "block":
        for factor in (1, 3):
            assert _broken(check_method(name, {"factor": factor}, quick=quick)) == []


@pytest.mark.parametrize("quick", EXTENTS)
@pytest.mark.parametrize("name", sorted(INNER))
def test_an_inner_step_keeps_what_every_pruner_promises(name, quick):
    def build(retention):
        return checked_inner("tango", {"name": name, "retention": retention}, NUM_LAYERS)[1]

    report, retentions = checks.Report(), FEW_RETENTIONS if quick else RETENTIONS
    checks.check_pruner_cases(report, build, retentions, quick=quick, is_step=True)
    assert _broken(report.results()) == []
    assert build(0.5).layer_shares(28) == (1.0,) * 18 + (0.5,) * 10


@pytest.mark.parametrize("name", COMPRESSORS)
def test_identity_and_equivalent_retention_are_those_of_the_options(name):
    assert METHODS[name].has_plan == (name != "aot")  # it merges tokens of the tower's grid
    first, second = (_build(name, retention).compressor for retention in (0.1, 0.2))
    assert first.identity()["name"] == name
    takes_retention = "retention" in option_names(METHODS[name])
    assert (first.identity() == second.identity()) == (not takes_retention)
    assert equivalent_retention(_build(name, 0.25)) == (1.0 if name == "full" else 0.25)


def test_all_compressors_give_the_same_bytes_in_another_process():
    pairs = [(_build(name, 0.3).compressor, make_clip()) for name in COMPRESSORS]
    others = checks.compressed_in_another_process(pairs)
    for (compressor, features), other in zip(pairs, others, strict=True):
        kept = compressor.compress(features)
        assert torch.equal(kept.indices, other.indices), compressor
        assert torch.equal(kept.tokens, other.tokens), compressor


def _error_of(compressor, features, **changes):
    """Message of the error for changed features."""
    with pytest.raises(ValueError, match=r".") as error:
        compressor.compress(replace(features, **changes))
    return str(error.value)


@pytest.mark.parametrize("name", COMPRESSORS)
class TestEveryCompressor:
    def test_values_that_are_not_finite_and_missing_signals_are_named(self, name):
        compressor, features = _build(name, 0.25).compressor, make_clip()
        for field in ("tokens", *sorted(compressor.needs)):
            for value in (torch.nan, torch.inf, -torch.inf):
                broken = getattr(features, field).clone()
                broken[(-1,) * broken.ndim] = value
                message = _error_of(compressor, features, **{field: broken})
                assert field in message
                assert "NaN or infinite" in message
        for field in compressor.needs:
            message = _error_of(compressor, features, **{field: None})
            assert "needs" in message
            assert field in message

    def test_features_that_require_gradients_give_the_same_bytes(self, name):
        compressor, clip = _build(name, 0.25).compressor, make_clip()
        wanted = {
            field: getattr(clip, field).clone().requires_grad_()
            for field in ("tokens", *compressor.needs)
        }
        plain, other = compressor.compress(clip), compressor.compress(replace(clip, **wanted))
        assert torch.equal(plain.indices, other.indices)
        assert torch.equal(plain.tokens, other.tokens)
        assert not other.tokens.requires_grad

    def test_it_passes_on_what_is_known_of_the_file(self, name):
        source = ClipSource(duration_s=2.5, frame_height=360)
        compressor = _build(name, 0.25).compressor
        assert compressor.compress(replace(make_clip(), source=source)).source == source

    def test_companions_are_selected_and_merged_like_the_tokens(self, name):
        """Companions that are powers of two of the tokens, so that all results are exact."""
        compressor, features = _build(name, 0.25).compressor, make_clip(5, (3, 7))
        rows = torch.stack([2 * features.tokens, -0.5 * features.tokens], dim=2)
        plain, deep = compressor.compress(features), replace(features, companions=rows)
        merged = torch.stack([2 * plain.tokens, -0.5 * plain.tokens], dim=1)
        own = rows.flatten(0, 1)[plain.indices]
        if not METHODS[name].has_plan:  # without a plan the companions of the position are kept
            merged = own
        for anchored, expected in ((False, merged), (True, own)):
            kept = compressor.compress(replace(deep, anchored=anchored))
            assert torch.equal(kept.indices, plain.indices)
            assert torch.equal(kept.tokens, plain.tokens)
            assert torch.equal(kept.companions, expected)

    def test_the_memory_layout_makes_no_difference(self, name):
        features = make_clip(5, (3, 7))
        strided = features.tokens.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        compressor = _build(name, 0.25).compressor
        plain = compressor.compress(features)
        other = compressor.compress(replace(features, tokens=strided))
        assert torch.equal(plain.indices, other.indices)
        torch.testing.assert_close(plain.tokens, other.tokens)


@pytest.mark.parametrize("name", sorted(METHODS))
class TestEveryMethod:
    def test_the_table_names_a_class_by_its_own_name(self, name):
        assert METHODS[name].__name__.lower() == name.replace("-", "").replace("_", "")

    def test_it_is_documented(self, name):
        for option in option_names(METHODS[name]):
            assert f"{option}:" in "".join(cls.__doc__ or "" for cls in METHODS[name].__mro__), (
                f"option {option} of {name} has no entry under Attributes"
            )


@pytest.mark.parametrize("name", PRUNERS)
class TestEveryStandalonePruner:
    def test_layers_are_given_their_nominal_shares(self, name):
        # DART keeps its 4 visual pivots on top of what 8 pivots take, each rounded down.
        below, above = (8, 4) if name == "dart" else (1, 1)
        prompt = SyntheticPrompt(grid=(8, 8, 8), dim=8)
        for retention in (0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.0):
            method = build_method(name, retention=retention)
            assert equivalent_retention(method) == pytest.approx(retention, abs=1e-11)
            if name == "framefusion":
                continue  # it promises only the average: see test_framefusion.py
            counts, _ = run_layers(method.pruner, NUM_LAYERS, prompt)
            for count, share in zip(counts, method.pruner.layer_shares(NUM_LAYERS), strict=True):
                assert -below <= count - 512 * share <= above, retention

    def test_what_cannot_be_reached_names_retention_and_what_is_possible(self, name):
        options = {"stages": [7, 14, 21]} if name == "pyramiddrop" else {}
        message = r"retention 0\.02 cannot be reached with (layer|stages)=.* average to 0\.\d+; "
        with pytest.raises(ValueError, match=message) as error:
            build_method(name, retention=0.02, **options)
        assert "\n" not in str(error.value)


def _compress(name, clip):
    build_method(name, retention=0.5).compressor.compress(clip)


def test_a_signal_is_looked_at_when_a_method_first_needs_it():
    clip = make_clip()
    _compress("uniform", clip)
    clip = replace(clip, saliency=clip.saliency.clone())
    clip.saliency[0, 0] = torch.nan
    _compress("uniform", clip)
    with pytest.raises(ValueError, match="saliency of this clip hold NaN"):
        _compress("topk", clip)


@pytest.mark.parametrize("name", ["tango", "holitom", "vidcom2", "vcast", "flashvid"])
@pytest.mark.parametrize("rows", [slice(None), slice(-1, None)])
def test_finite_tokens_whose_norms_overflow_are_refused(name, rows):
    clip = make_clip(kind="noise")
    clip.tokens[rows] *= 1e25
    with pytest.raises(ValueError, match="norms overflow float32"):
        _compress(name, clip)
