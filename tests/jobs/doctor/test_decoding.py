"""Checks of video decoders and of the embedded model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from doctor_results import result_of

from jobs.doctor import machine as decoding
from tango_core.video import DecoderUnavailableError, FrameSpec, decode_frames, decoder_versions


@pytest.mark.parametrize("name", ["decord", "pyav", "torchcodec"])
def test_a_decoder_reads_exactly_or_is_not_installed(name):
    result = result_of(decoding.video_decoder, name)
    assert result.status == "ok"
    try:
        assert decoder_versions(name) in result.text
    except DecoderUnavailableError:
        assert "not installed" in result.text
        chosen = result_of(decoding.video_decoder, name, name)
        assert chosen.status == "problem"
        assert f"decoder '{name}'" in chosen.text


def test_an_unknown_decoder_is_a_problem():
    result = result_of(decoding.video_decoder, "vlc")
    assert result.status == "problem"
    assert "unknown decoder 'vlc'; choose one of" in result.text


def test_neighbouring_frames_are_not_taken_for_the_right_ones():
    with decoding.grey_clip() as (path, levels):
        frames = decode_frames(str(path), FrameSpec(num_frames=6))
    assert decoding.frames_match(frames, levels)
    shifted = replace(frames, timestamps=frames.timestamps + 1)
    assert not decoding.frames_match(shifted, np.append(levels, 0))
    assert not decoding.frames_match(replace(frames, timestamps=frames.timestamps[[0] * 6]), levels)


@pytest.mark.slow
def test_the_embedded_model_answers():
    result = result_of(decoding.embedded_model)
    assert result.status == "ok"
    assert result.text.endswith("right")
