"""What every entry of METHODS promises, checked over the whole table."""

from functools import partial

import pytest
import torch

from tango_core.compressors import METHODS, build_method, equivalent_retention
from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.contract import compressor_checks as checks
from tango_core.compressors.contract.clips import CLIPS, make_clip
from tango_core.compressors.options import option_names

COMPRESSORS = sorted(name for name, cls in METHODS.items() if issubclass(cls, Compressor))
PRUNERS = sorted(name for name, cls in METHODS.items() if issubclass(cls, LayerPruner))
RETENTIONS = [0.01, 0.05, 0.1, 0.25, 0.5, 0.9, 1.0]


def _build(name, retention):
    """A method of the table at a retention; `full` and `block` have none to choose."""
    if name == "block":
        return build_method(name, factor=1 if retention == 1 else 2)
    takes_retention = "retention" in option_names(METHODS[name])
    return build_method(name, **({"retention": retention} if takes_retention else {}))


def _compressor(name, retention):
    """What it runs before the language model."""
    return _build(name, retention).compressor


@pytest.fixture(params=CLIPS, ids=str)
def shape(request):
    """One kind of clip."""
    return request.param


@pytest.mark.parametrize("name", COMPRESSORS)
class TestEveryCompressor:
    def test_indices_are_ascending_unique_and_in_range(self, name, shape):
        features = make_clip(**CLIPS[shape])
        for retention in RETENTIONS:
            checks.returns_a_valid_video(partial(_compressor, name, retention), features)

    def test_keeps_no_more_than_the_promised_share(self, name, shape):
        features = make_clip(**CLIPS[shape])
        for retention in RETENTIONS:
            checks.keeps_no_more_than_promised(partial(_compressor, name, retention), features)

    @pytest.mark.parametrize("retention", RETENTIONS)
    def test_keeps_no_less_where_nothing_repeats(self, name, retention):
        features = make_clip(num_frames=8, grid=(8, 8), kind="noise")
        checks.keeps_no_less_than_promised(partial(_compressor, name, retention), features)

    def test_retention_one_is_the_identity(self, name, shape):
        checks.retention_one_keeps_all(partial(_compressor, name, 1.0), make_clip(**CLIPS[shape]))

    def test_same_input_gives_the_same_bytes(self, name, shape):
        features = make_clip(**CLIPS[shape])
        checks.same_input_gives_the_same_bytes(partial(_compressor, name, 0.3), features)

    @pytest.mark.parametrize("retention", [0.1, 0.5, 1.0])
    def test_does_not_change_its_input(self, name, shape, retention):
        make = partial(_compressor, name, retention)
        checks.does_not_change_its_input(make, make_clip(**CLIPS[shape]))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_keeps_dtype_and_device(self, name, shape, dtype):
        features = make_clip(**CLIPS[shape], dtype=dtype)
        for retention in (0.05, 0.5, 1.0):
            checks.keeps_dtype_and_device(partial(_compressor, name, retention), features)

    def test_its_plan_makes_the_same_tokens_also_when_stored(self, name, shape):
        features = make_clip(**CLIPS[shape])
        for retention in (0.05, 0.3, 1.0):
            make = partial(_compressor, name, retention)
            checks.makes_its_tokens_by_its_plan(make, features)
            checks.plans_validly(make, features)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_its_plan_makes_the_same_tokens_in_half_precision(self, name, dtype):
        features = make_clip(dtype=dtype)
        checks.makes_its_tokens_by_its_plan(partial(_compressor, name, 0.3), features)

    def test_companions_are_cut_and_merged_like_the_tokens(self, name):
        for retention in (0.1, 0.3, 1.0):
            checks.companions_follow_the_tokens(partial(_compressor, name, retention), make_clip())

    def test_every_shipped_method_has_a_plan(self, name):
        assert METHODS[name].has_plan

    def test_what_is_known_of_the_file_is_handed_on(self, name):
        for retention in (0.1, 1.0):
            checks.passes_on_the_source(partial(_compressor, name, retention), make_clip())

    def test_memory_layout_of_the_input_does_not_matter(self, name):
        features = make_clip(num_frames=4, grid=(3, 5))
        checks.ignores_the_memory_layout(partial(_compressor, name, 0.3), features)

    def test_values_that_are_not_finite_are_an_error(self, name):
        checks.refuses_values_that_are_not_finite(partial(_compressor, name, 0.5), make_clip())

    def test_a_missing_signal_is_an_error_that_names_it(self, name):
        checks.names_a_missing_signal(partial(_compressor, name, 0.5), make_clip())

    def test_signals_that_needs_does_not_name_change_nothing(self, name, shape):
        features = make_clip(**CLIPS[shape])
        checks.reads_only_what_it_needs(partial(_compressor, name, 0.3), features)

    def test_it_can_be_pickled(self, name):
        checks.is_pickled_whole(partial(_compressor, name, 0.3), make_clip())

    def test_identity_is_json_and_tells_retentions_apart(self, name):
        first, second, whole = (_compressor(name, retention) for retention in (0.1, 0.2, 1.0))
        checks.identity_tells_retentions_apart(first, second, whole)
        assert first.identity()["name"] == name
        takes_retention = "retention" in option_names(METHODS[name])
        assert (first.identity() == second.identity()) == (not takes_retention)

    def test_equivalent_retention_is_the_target(self, name):
        method = _build(name, 0.25)
        assert equivalent_retention(method) == (1.0 if name == "full" else 0.25)


def test_all_compressors_give_the_same_bytes_in_another_process():
    pairs = [(_compressor(name, 0.3), make_clip()) for name in COMPRESSORS]
    others = checks.compressed_in_another_process(pairs)
    for (compressor, features), other in zip(pairs, others, strict=True):
        kept = compressor.compress(features)
        assert torch.equal(kept.indices, other.indices), compressor
        assert torch.equal(kept.tokens, other.tokens), compressor


@pytest.mark.parametrize("name", sorted(METHODS))
class TestEveryMethod:
    def test_the_table_names_a_class_by_its_own_name(self, name):
        assert METHODS[name].__name__.lower() == name.replace("-", "").replace("_", "")

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
