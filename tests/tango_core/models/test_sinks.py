"""Sinks that a recipe names: used by the encoder, part of the cache's identity, checked early."""

from __future__ import annotations

import json

import pytest

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
