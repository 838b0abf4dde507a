"""Sinks that a recipe names: used by the encoder, part of the cache's identity, checked early."""

from __future__ import annotations

import json
import logging

import pytest

from tango_core.compressors import build_method
from tango_core.models import describe_model, load_encoder
from tango_core.models.sinks import PUBLISHED_SINKS, SinkList, read_sinks


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


def test_they_change_what_tango_picks_and_where_that_is_cached(headed, frames, sink_file):
    needs = frozenset({"saliency"})
    options = {"context_ratio": 0.0, "tau": 1.0, "static_tau": 1.0, "sinks": "exclude"}
    compressor = build_method("tango", retention=0.2, **options).compressor
    plain = load_encoder("llava-onevision-7b", str(headed), num_frames=3)
    best = plain.encode(frames, needs).saliency[0].argmax().item()
    assert best in compressor.compress(plain.encode(frames, needs)).indices
    path = sink_file(sinks=[best])
    named = load_encoder("llava-onevision-7b", str(headed), num_frames=3, sinks=path)
    assert best not in compressor.compress(named.encode(frames, needs)).indices
    assert named.spec.identity() != plain.spec.identity()


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
        ({"grid": [14, 14]}, r"a grid of 14 x 14 tokens, but a frame of model .* has 4 x 4"),
        ({"sinks": [16]}, r"positions in \[0, 16\) of a 4 x 4 grid, got \[16\]"),
        ({"sinks": [3, 3]}, "distinct"),
        ({"sinks": [2.5]}, "distinct"),
        ({"sinks": None}, "is not a sink file"),
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
    with pytest.raises(FileNotFoundError, match="tango analyze sinks"):
        read_sinks("/no/such/sinks.json")


def test_sinks_of_another_checkpoint_are_used_with_a_warning(headed, sink_file, caplog):
    path = sink_file(model={"name": "x", "digest": "of another checkpoint"})
    with caplog.at_level(logging.WARNING):
        spec = describe_model("llava-onevision-7b", str(headed), sinks=path)
    assert spec.sinks.positions == (5, 2)
    assert "another checkpoint" in caplog.text


@pytest.mark.parametrize(("grid", "places"), [((14, 14), 6), ((13, 13), 3)])
def test_published_sinks_lie_on_their_grid(grid, places):
    assert len(SinkList(grid, PUBLISHED_SINKS[grid]).positions) == places
