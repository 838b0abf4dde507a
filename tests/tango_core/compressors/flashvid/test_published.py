"""What `None` and "published" stand for, model by model, and the average over the layers."""

import pytest

from tango_core.compressors import build_method, equivalent_retention


def _options(model, num_layers=28, **options):
    return build_method("flashvid", num_layers=num_layers, model=model, retention=0.1, **options)


@pytest.mark.parametrize(
    ("model", "num_layers", "selection", "segments", "layer", "share"),
    [
        (None, 28, "v2", 8, 20, 0.3),
        ("llava-onevision-7b", 28, "v2", 8, 20, 0.3),
        ("llava-video-7b", 28, "v2", 8, 20, 0.3),
        ("qwen2.5-vl-7b", 28, "v1", 4, 20, 0.3),
        ("qwen3-vl-8b", 36, "v1", 4, 28, 0.1),
        ("tiny", 4, "v2", 8, 3, 0.3),
        ("llava-onevision-7b", 24, "v2", 8, 17, 0.3),
    ],
)
def test_published_values_follow_the_model(model, num_layers, selection, segments, layer, share):
    method = _options(model, num_layers)
    assert method.options["selection"] == selection
    assert method.options["num_segments"] == segments
    assert (method.pruner.layer, method.pruner.retention) == (layer, share)
    assert equivalent_retention(method, num_layers) == pytest.approx(0.1)


@pytest.mark.parametrize(("model", "num_layers"), [("qwen3-vl-8b", 36), ("llava-video-7b", 28)])
def test_the_share_before_the_model_is_a_quarter_more(model, num_layers):
    """In every column of the release's table the layers average to exactly the retention."""
    assert _options(model, num_layers).compressor.outer_retention == 0.125


def test_what_is_given_is_not_replaced():
    inner = {"name": "fastv", "layer": 5, "retention": 0.5}
    method = _options("qwen2.5-vl-7b", selection="div", num_segments=2, inner=inner)
    assert method.options["selection"] == "div"
    assert method.options["num_segments"] == 2
    assert method.options["inner"] == {**inner, "num_layers": 28}


@pytest.mark.parametrize(("retention", "share"), [(0.8, 0.3), (0.9, 0.65)])
def test_above_the_published_average_the_step_drops_less(retention, share):
    method = build_method("flashvid", retention=retention)
    assert method.pruner.retention == pytest.approx(share)
    assert method.compressor.outer_retention == 1
    assert equivalent_retention(method) == pytest.approx(retention)


def test_a_model_without_a_layer_at_that_share_is_an_error():
    with pytest.raises(ValueError, match=r"layer 20 of 28.*1 layers has none.*set inner to null"):
        _options("tiny", 1)


def test_a_step_of_another_kind_is_refused_by_its_names():
    with pytest.raises(ValueError, match=r"unknown inner.name 'fast'; did you mean 'fastv'"):
        _options(None, inner={"name": "fast", "layer": 3, "retention": 0.5})
