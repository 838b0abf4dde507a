"""Describing and loading models by name: devices, dtypes, sinks, and settings that are refused."""

from __future__ import annotations

import json

import pytest

from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.models.options import PUBLISHED_SINKS, SinkList, read_sinks


def test_loading_by_name_and_by_description_is_the_same(checkpoint):
    spec = describe_model("llava-onevision-7b", str(checkpoint), num_frames=4)
    for load in (load_encoder, load_language_model):
        assert load(spec).spec == load("llava-onevision-7b", str(checkpoint), num_frames=4).spec
        assert load(spec, device="cpu").spec.device == "cpu"


def test_cuda_without_a_gpu_is_refused(checkpoint, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=r"model\.device is cuda, but this process sees no GPU"):
        load_encoder("llava-onevision-7b", str(checkpoint), device="cuda")


@pytest.mark.parametrize(
    ("device", "capability", "expected"),
    [
        ("cpu", (9, 0), "float32"),
        ("auto", None, "float32"),
        ("auto", (9, 0), "bfloat16"),
        ("auto", (7, 5), "bfloat16"),  # a cache's name follows from no host
        ("cuda", (7, 5), "bfloat16"),
        ("cuda", (8, 0), "bfloat16"),
        ("cuda", None, "bfloat16"),  # a driver without a GPU plans for workers with one
    ],
)
def test_the_precision_that_auto_means(checkpoint, monkeypatch, device, capability, expected):
    monkeypatch.setattr("torch.cuda.is_available", lambda: capability is not None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: capability)
    spec = describe_model("llava-onevision-7b", str(checkpoint), device=device)
    assert spec.dtype == expected
    assert describe_model("llava-onevision-7b", str(checkpoint), dtype="float16").dtype == "float16"


@pytest.mark.parametrize("load", [load_encoder, load_language_model])
def test_a_gpu_without_the_model_s_precision_is_refused(checkpoint, monkeypatch, load):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "Tesla T4")
    spec = describe_model("llava-onevision-7b", str(checkpoint), device="cuda")
    with pytest.raises(ValueError, match=r"model\.dtype is bfloat16") as error:
        load(spec)
    assert "cuda is a Tesla T4, which does not compute in it; set model.dtype to" in str(
        error.value
    )
    assert "\n" not in str(error.value)
    load(spec, device="cpu")
    load(spec, device="meta")


ONEVISION, VIDEO = "llava-onevision-7b", "llava-video-7b"
QWEN, QWEN3, QWEN35 = "qwen2.5-vl-7b", "qwen3-vl-8b", "qwen3.5-9b"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (ONEVISION, {"dtype": "int8"}, "must be one of auto, float32, float16, bfloat16"),
        (ONEVISION, {"device": "tpu"}, "must be one of auto, cpu, cuda"),
        (ONEVISION, {"sampling": "floor"}, "must be one of truncate, round, .*, got 'floor'"),
        (ONEVISION, {"encode_batch": 0}, "must be auto, 1 or larger, got 0"),
        (ONEVISION, {"encode_batch": 2.5}, "must be auto, 1 or larger, got 2.5"),
        (ONEVISION, {"num_frames": 0}, "must be 1 or larger, got 0"),
        (ONEVISION, {"pooling": "average"}, "is no setting of model llava-onevision-7b"),
        (VIDEO, {"time_instruction": "a"}, "must be one of none, correct, vlmevalkit, lmms_eval"),
        (VIDEO, {"pooling_step": 1}, "must be 2 or larger, got 1"),
        (QWEN, {"max_pixels": 63}, "must be at least .* 64, got 63"),
        (QWEN, {"max_pixels": 0}, "must be 1 or larger, got 0"),
        (QWEN, {"frame_area": 63}, "must be at least .* 64, got 63"),
        (QWEN, {"seconds_per_grid": 0}, "must be a positive number, got 0"),
        (QWEN3, {"frame_area": 0}, "must be 1 or larger, got 0"),
        (QWEN3, {"min_pixels": -1}, "must be 1 or larger, got -1"),
        (VIDEO, {"pooling_step": 8}, "must be at most the 7 positions .*, got 8"),
        (QWEN, {"saliency_from": "a/b"}, "is no setting of model qwen2.5-vl-7b"),
        (QWEN3, {"frame_area": 4096, "max_pixels": 4096}, "takes the place of model.max_pixels"),
        (QWEN35, {"companions": "merge"}, "is no setting of model qwen3.5-9b"),
        (QWEN3, {"empty_blocks": "some"}, "must be one of keep, drop, got 'some'"),
    ],
)
def test_a_wrong_setting_is_named(small_paths, name, options, words):
    with pytest.raises(ValueError, match=rf"model\.{next(iter(options))} {words}") as caught:
        describe_model(name, small_paths[name], **options)
    assert "\n" not in str(caught.value)


@pytest.fixture
def sink_file(tmp_path):
    """Writes a file of sinks for the checkpoint's 4 x 4 grid; changes are its top-level keys."""

    def write(**changes) -> str:
        file = tmp_path / "sinks.json"
        file.write_text(json.dumps({"grid": [4, 4], "sinks": [5, 2], **changes}))
        return str(file)

    return write


def test_the_encoder_uses_them_instead_of_its_own(headed, frames, sink_file):
    plain = load_encoder("llava-onevision-7b", str(headed), num_frames=3)
    named = load_encoder("llava-onevision-7b", str(headed), num_frames=3, sinks=sink_file())
    assert plain.encode(frames).sinks == ()
    assert named.encode(frames).sinks == (5, 2)


def test_identity_holds_positions_and_not_where_the_file_is(headed, sink_file):
    specs = [
        describe_model("llava-onevision-7b", str(headed), sinks=sink_file(**changes))
        for changes in ({}, {"clips": 9}, {"sinks": [5]})
    ]
    first, same, other = (spec.identity() for spec in specs)
    assert first == same != other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": [14, 14]}, r"a grid of \(14, 14\), model .* has \(4, 4\)"),
        ({"sinks": [16]}, r"positions in \[0, 16\) of a 4 x 4 grid, got \[16\]"),
        ({"sinks": [3, 3]}, "distinct"),
        ({"sinks": [2.5]}, "distinct"),
        ({"grid": [4]}, "is not a sink file"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_before_anything_is_loaded(
    headed, sink_file, changes, message
):
    with pytest.raises(ValueError, match=message) as refusal:
        describe_model("llava-onevision-7b", str(headed), sinks=sink_file(**changes))
    assert "\n" not in str(refusal.value)


def test_a_missing_file_says_how_to_make_one():
    with pytest.raises(ValueError, match=r"FileNotFoundError.*tango analyze sinks"):
        read_sinks("/no/such/sinks.json")


@pytest.mark.parametrize(("grid", "places"), [((14, 14), 6), ((13, 13), 3)])
def test_published_sinks_lie_on_their_grid(grid, places):
    assert len(SinkList(grid, PUBLISHED_SINKS[grid]).positions) == places
