"""What every entry of METHODS promises, checked over the whole table."""

import json
from dataclasses import replace

import pytest
import torch
from synthetic_features import make_clip

from tango_core.compressors import METHODS, build_method, equivalent_retention
from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.options import option_names
from tango_core.types import ClipSource

COMPRESSORS = sorted(name for name, cls in METHODS.items() if issubclass(cls, Compressor))
PRUNERS = sorted(name for name, cls in METHODS.items() if issubclass(cls, LayerPruner))
RETENTIONS = [0.01, 0.05, 0.1, 0.25, 0.5, 0.9, 1.0]
SHAPES = {
    "one-frame": {"num_frames": 1},
    "two-frames": {"num_frames": 2},
    "eight-frames": {"num_frames": 8},
    "not-square": {"num_frames": 5, "grid": (3, 7)},
    "one-cell": {"num_frames": 6, "grid": (1, 1)},
    "static": {"kind": "static"},
    "noise": {"kind": "noise"},
    "duplicates": {"kind": "duplicates"},
}
# Published budgets are rounded once for salient and once for context tokens in every frame.
TOKENS_PER_FRAME_OF_ROUNDING = 2


def _build(name, retention):
    """A method of the table at a retention; `full` has none to choose."""
    takes_retention = "retention" in option_names(METHODS[name])
    return build_method(name, **({"retention": retention} if takes_retention else {}))


@pytest.fixture(params=SHAPES, ids=str)
def shape(request):
    """One kind of clip."""
    return request.param


@pytest.mark.parametrize("name", COMPRESSORS)
class TestEveryCompressor:
    def test_indices_are_ascending_unique_and_in_range(self, name, shape):
        features = make_clip(**SHAPES[shape])
        for retention in RETENTIONS:
            kept = _build(name, retention).compressor.compress(features)
            assert kept.indices.dtype == torch.int64
            assert kept.indices.tolist() == sorted(set(kept.indices.tolist()))
            assert 0 <= kept.indices[0] <= kept.indices[-1] < kept.num_total
            assert kept.tokens.shape == (kept.num_kept, features.tokens.shape[-1])
            assert kept.grid == (len(features.tokens), *features.grid)
            assert kept.tokens.isfinite().all()

    def test_keeps_no_more_than_the_promised_share(self, name, shape):
        features = make_clip(**SHAPES[shape])
        num_frames, num_cells, _ = features.tokens.shape
        slack = TOKENS_PER_FRAME_OF_ROUNDING * num_frames
        for retention in RETENTIONS:
            method = _build(name, retention)
            promised = method.compressor.outer_retention * num_frames * num_cells
            assert 1 <= method.compressor.compress(features).num_kept <= promised + slack

    @pytest.mark.parametrize("retention", RETENTIONS)
    def test_keeps_no_less_where_nothing_repeats(self, name, retention):
        features = make_clip(num_frames=8, grid=(8, 8), kind="noise")
        method = _build(name, retention)
        promised = method.compressor.outer_retention * 8 * 64
        slack = TOKENS_PER_FRAME_OF_ROUNDING * 8
        assert method.compressor.compress(features).num_kept >= promised - slack

    def test_retention_one_is_the_identity(self, name, shape):
        features = make_clip(**SHAPES[shape])
        kept = _build(name, 1.0).compressor.compress(features)
        assert kept.num_kept == kept.num_total
        assert torch.equal(kept.tokens, features.tokens.flatten(0, 1))

    def test_same_input_gives_the_same_bytes(self, name, shape):
        features = make_clip(**SHAPES[shape])
        first, second = (_build(name, 0.3).compressor.compress(features) for _ in range(2))
        assert torch.equal(first.indices, second.indices)
        assert torch.equal(first.tokens, second.tokens)

    @pytest.mark.parametrize("retention", [0.1, 0.5, 1.0])
    def test_does_not_change_its_input(self, name, shape, retention):
        features, untouched = make_clip(**SHAPES[shape]), make_clip(**SHAPES[shape])
        kept = _build(name, retention).compressor.compress(features)
        kept.tokens.zero_()  # the result must not be a view of the input either
        kept.indices.zero_()
        for field in ("tokens", "timestamps", "saliency", "attention", "keys", "frame_embeddings"):
            assert torch.equal(getattr(features, field), getattr(untouched, field)), field

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_keeps_dtype_and_device(self, name, shape, dtype):
        features = make_clip(**SHAPES[shape], dtype=dtype)
        for retention in (0.05, 0.5, 1.0):
            kept = _build(name, retention).compressor.compress(features)
            assert kept.tokens.dtype == dtype
            assert kept.tokens.device == kept.indices.device == features.tokens.device

    def test_what_is_known_of_the_file_is_handed_on(self, name):
        source = ClipSource(duration_s=2.5, frame_height=360)
        features = replace(make_clip(), source=source)
        for retention in (0.1, 1.0):
            assert _build(name, retention).compressor.compress(features).source == source

    def test_memory_layout_of_the_input_does_not_matter(self, name):
        features = make_clip(num_frames=4, grid=(3, 5))
        strided = features.tokens.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        assert not strided.is_contiguous()
        plain = _build(name, 0.3).compressor.compress(features)
        other = _build(name, 0.3).compressor.compress(replace(features, tokens=strided))
        assert torch.equal(plain.indices, other.indices)
        torch.testing.assert_close(plain.tokens, other.tokens)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_values_that_are_not_finite_are_an_error(self, name, value):
        compressor = _build(name, 0.5).compressor
        for field in ("tokens", *sorted(compressor.needs)):
            broken = getattr(make_clip(), field).clone()
            broken[(-1,) * broken.ndim] = value
            with pytest.raises(ValueError, match=rf"{field} .*NaN or infinite"):
                compressor.compress(replace(make_clip(), **{field: broken}))

    def test_a_missing_signal_is_an_error_that_names_it(self, name):
        compressor = _build(name, 0.5).compressor
        for field in compressor.needs:
            with pytest.raises(ValueError, match=rf"needs .*{field}"):
                compressor.compress(replace(make_clip(), **{field: None}))

    def test_identity_is_json_and_tells_retentions_apart(self, name):
        identities = [_build(name, retention).compressor.identity() for retention in (0.1, 0.2)]
        assert json.loads(json.dumps(identities[0])) == identities[0]
        assert identities[0]["name"] == name
        assert (identities[0] == identities[1]) == (name == "full")
        assert _build(name, 1.0).compressor.identity() == {"name": "full"}

    def test_equivalent_retention_is_the_target(self, name):
        method = _build(name, 0.25)
        assert equivalent_retention(method) == (1.0 if name == "full" else 0.25)


@pytest.mark.parametrize("name", sorted(METHODS))
class TestEveryMethod:
    def test_the_table_names_a_class_by_its_own_name(self, name):
        assert METHODS[name].__name__.lower() == name.replace("-", "")

    @pytest.mark.parametrize("retention", [0.0, -0.1, 1.01, float("nan")])
    def test_a_retention_outside_its_range_is_an_error(self, name, retention):
        if "retention" in option_names(METHODS[name]):
            with pytest.raises(ValueError, match="retention"):
                build_method(name, retention=retention)

    def test_an_unknown_option_is_an_error_that_lists_the_options(self, name):
        with pytest.raises(ValueError, match=r"no option 'retntion'.*its options are"):
            build_method(name, retntion=0.1)

    def test_it_is_documented(self, name):
        for option in option_names(METHODS[name]):
            assert f"{option}:" in "".join(cls.__doc__ or "" for cls in METHODS[name].__mro__), (
                f"option {option} of {name} has no entry under Attributes"
            )


@pytest.mark.parametrize("name", PRUNERS)
def test_a_pruner_gets_all_tokens(name):
    method = build_method(name, retention=0.5)
    assert method.compressor.identity() == {"name": "full"}
    assert isinstance(method.pruner, METHODS[name])
    assert equivalent_retention(method) == pytest.approx(0.5, abs=1e-11)
