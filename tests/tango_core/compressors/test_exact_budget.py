"""`budget: exact`: every method keeps round(retention * T * L) tokens of clips of any shape."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Compressor
from tango_core.compressors.baselines import grids_of_shape
from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.options import option_names

WITH_BUDGET = sorted(
    name
    for name, cls in METHODS.items()
    if issubclass(cls, Compressor) and "budget" in option_names(cls)
)
# They keep whole frames or grids: the nearest such count.
WHOLE = {"fewer_frames", "pool_time", "pool_space"}
# Averaging static places may leave fewer distinct tokens than asked for.
AVERAGING = {"holitom", "prunevid", "tango"}
EXACT = [name for name in WITH_BUDGET if name not in WHOLE]

SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(1, 6))
RETENTIONS = st.floats(0.02, 0.98)


def _kept(name, features, retention, **options):
    method = build_method(name, retention=retention, budget="exact", **options)
    return method.compressor.compress(features).num_kept


def _asked(features, retention):
    total = features.tokens.shape[0] * features.tokens.shape[1]
    return min(total, max(1, round(retention * total)))


def test_every_method_before_the_language_model_takes_it():
    without = {name for name, cls in METHODS.items() if issubclass(cls, Compressor)} - set(
        WITH_BUDGET
    )
    # Two have no retention, and the kept cells of `aot` follow from where its anchors lie.
    assert without == {"full", "block", "aot", "earlytom"}


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(shape=SHAPES, retention=RETENTIONS)
@example(shape=(5, 3, 7), retention=0.9)  # 94.5 or 94.50000000000001, by the order of the factors
@example(shape=(7, 5, 11), retention=0.1)
def test_exactly_what_was_asked_where_nothing_repeats(name, shape, retention):
    frames, height, width = shape
    features = make_clip(num_frames=frames, grid=(height, width), kind="noise", dim=16)
    options = {"inner": None} if name == "flashvid" else {}
    assert _kept(name, features, retention, **options) == _asked(features, retention)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kind", ["scene", "static", "duplicates"])
def test_exactly_what_was_asked_where_frames_repeat(name, kind):
    features = make_clip(num_frames=8, grid=(5, 5), kind=kind)
    options = {"inner": None} if name == "flashvid" else {}
    for retention in (0.1, 0.37):
        kept, asked = _kept(name, features, retention, **options), _asked(features, retention)
        if name in AVERAGING and kind != "scene":
            assert min(asked, 25) <= kept <= asked
        else:
            assert kept == asked


@pytest.mark.parametrize("name", sorted(WHOLE))
@settings(max_examples=15, deadline=None, derandomize=True)
@given(shape=SHAPES, retention=RETENTIONS)
def test_whole_frames_and_grids_are_matched_to_the_nearest_count(name, shape, retention):
    frames, height, width = shape
    features = make_clip(num_frames=frames, grid=(height, width), kind="noise", dim=4)
    cells = height * width
    if name == "pool_space":
        counts = {frames * rows * columns for rows, columns in grids_of_shape((height, width))}
    else:
        counts = {number * cells for number in range(1, frames + 1)}
    asked = retention * frames * cells
    kept = _kept(name, features, retention)
    assert abs(kept - asked) <= min(abs(count - asked) for count in counts) + 1e-9


@pytest.mark.parametrize("variant", ["frame", "segment"])
@pytest.mark.parametrize("retention", [0.03, 0.5, 0.99])
def test_fastvid_loses_no_remainder_in_either_variant(variant, retention):
    features = make_clip(num_frames=11, grid=(5, 5), kind="noise")
    assert _kept("fastvid", features, retention, variant=variant) == _asked(features, retention)
