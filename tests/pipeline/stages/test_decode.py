import functools
import socket
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from clips import clip
from numbered_videos import numbers_of, write_folder

from pipeline.clips import Clip
from pipeline.stages.decode import decode_video
from tango_core.video import FrameSpec, decode_frames

SPEC = FrameSpec(8, size=(32, 64))
decode = functools.partial(decode_video, spec=SPEC, timeout_s=120, memory_gib=4)


def row(path, start=None, end=None, **more):
    about = {"benchmark": "b", "video_id": "v"} | more
    return Clip(path=str(path), clip_start=start, clip_end=end, **about)


def test_a_row_gains_its_frames_and_keeps_everything_else():
    given = row(clip("closed_gop.mp4"), benchmark="shapes", questions=[1, 2])
    result = decode(given)
    expected = decode_frames(given.path, SPEC)
    np.testing.assert_array_equal(result.frames.pixels, expected.pixels)
    np.testing.assert_array_equal(result.frames.timestamps, expected.timestamps)
    assert result.frames.source == expected.source is not None
    assert (result.status, result.error, result.warnings) == ("ok", None, [])
    assert result.decode_video_ms > 0
    assert (result.benchmark, result.questions) == (given.benchmark, given.questions)
    assert given.frames is None


def test_a_frame_folder_is_a_video(tmp_path):
    result = decode(row(write_folder(tmp_path / "frames", 8)))
    assert numbers_of(result.frames.pixels) == list(range(1, 9))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file whose first byte is unreadable")
def test_a_file_that_cannot_be_read_is_a_fault_of_its_store():
    """The kernel refuses the first bytes of this file with EIO."""
    result = decode(row("/proc/self/mem"))
    assert result.status == "decode_failed"
    assert result.store_fault.startswith("/proc/self/mem: ")
    assert "Input/output error" in result.store_fault


BAD = {
    "truncated": lambda tmp: row(clip("no_index.mp4")),
    "nearly nothing left": lambda tmp: row(clip("a_few_frames.mp4")),
    "empty": lambda tmp: row(clip("empty.mp4")),
    "text": lambda tmp: row(clip("text.mp4")),
    "missing": lambda tmp: row(tmp / "gone.mp4"),
    "empty folder": lambda tmp: row(tmp),
    "clip behind the end": lambda tmp: row(clip("closed_gop.mp4"), 50.0, 60.0),
    "bounds in the wrong order": lambda tmp: row(clip("closed_gop.mp4"), 3.0, 2.0),
    "negative start": lambda tmp: row(clip("closed_gop.mp4"), -1.0, 2.0),
    "path with a NUL": lambda tmp: row("a\0b.mp4"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_clip_is_a_failed_row_of_one_line(case, tmp_path):
    bad = BAD[case](tmp_path)
    spec = FrameSpec(32, size=(32, 64))
    result = decode_video(bad, spec=spec, timeout_s=120, memory_gib=4)
    assert result.status == "decode_failed"
    assert result.frames is None
    assert result.error.startswith("decode: ")
    assert bad.path in result.error
    assert result.store_fault is None
    assert "\n" not in result.error
    assert decode(row(clip("closed_gop.mp4"))).status == "ok"


def test_a_file_that_only_the_driver_has_names_the_node(tmp_path):
    gone = str(tmp_path / "gone.mp4")
    said = f"decode: {gone}: no such file"
    assert decode(row(gone)).error == said
    error = decode(row(gone, source_fingerprint="stat:1")).error
    assert error.startswith(f"{said} on {socket.gethostname()}, but it existed when")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_too_little_memory_is_a_failed_row_that_names_the_setting():
    spec = FrameSpec(24, size=(3000, 3000), decoder="pyav")
    result = decode_video(row(clip("open_gop.mp4")), spec=spec, timeout_s=120, memory_gib=0.5)
    assert result.status == "decode_failed"
    assert "needed more than 0.5 GiB" in result.error
    assert "decode.memory_gib" in result.error
    again = decode_video(row(clip("open_gop.mp4")), spec=SPEC, timeout_s=120, memory_gib=0.5)
    assert again.status == "ok"


def broken_decord(folder, failing):
    """A decord that a child process finds first, and whose reader does `failing`."""
    (folder / "decord.py").write_text(f"""
import ctypes, time
__version__ = "0.0"
class DECORDError(Exception): ...
class logging:
    QUIET = -8
    set_level = staticmethod(lambda level: None)
def cpu(index): ...
def VideoReader(*args, **kwargs): {failing}
""")
    return folder


def test_too_little_time_is_a_failed_row_that_names_the_setting(tmp_path, monkeypatch):
    """No machine is fast enough for this reader."""
    monkeypatch.syspath_prepend(broken_decord(tmp_path, "time.sleep(600)"))
    given = row(clip("closed_gop.mp4"))
    explicit = replace(SPEC, decoder="decord")
    result = decode_video(given, spec=explicit, timeout_s=0.5, memory_gib=3.25)
    assert result.status == "decode_failed"
    assert "no result from the decoder within 0.5 s" in result.error
    assert "decode.timeout_s" in result.error
    assert decode_video(given, spec=SPEC, timeout_s=120, memory_gib=3.25).status == "ok"


@pytest.mark.parametrize("decoder", ["torchcodec", "torchcodec_cuda"])
@pytest.mark.skipif(find_spec("torchcodec") is not None, reason="the extra is installed")
def test_a_missing_decoder_stops_the_job_instead_of_failing_every_clip(decoder):
    spec = FrameSpec(8, decoder=decoder)
    with pytest.raises(ValueError, match=r"tango-video\[torchcodec\]"):
        decode_video(row(clip("closed_gop.mp4")), spec=spec, timeout_s=120, memory_gib=4)


class TestDamagedClip:
    given = staticmethod(
        lambda: row(clip("hole.webm"), clip_key="k", benchmark="b", video_id="holey")
    )

    def test_it_is_a_failure_of_its_own_that_says_how_to_keep_it(self):
        result = decode(self.given())
        assert result.status == "decode_damaged"
        assert result.frames is None
        assert result.error.startswith(f"decode: {clip('hole.webm')}: the file is damaged where")
        assert "has lost frames" in result.error
        assert result.error.endswith("set decode.damaged: keep")

    def test_kept_it_has_its_frames_and_a_key_that_no_cache_knows(self):
        result = decode(self.given(), keep_damaged=True)
        assert (result.status, result.error) == ("ok", None)
        assert result.frames.pixels.shape == (8, 32, 64, 3)
        assert "has lost frames" in result.damage[0]
        assert result.clip_key != "k"
        other = decode(replace(self.given(), video_id="other"), keep_damaged=True)
        assert other.clip_key != result.clip_key
