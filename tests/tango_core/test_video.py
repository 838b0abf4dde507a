import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from clips import clip, draw, numbers_of, write_folder
from PIL import Image

from tango_core.decoders import decord
from tango_core.video import FrameSpec, VideoDecodeError, decode_frames, decoder_versions, probe

needs_decord = pytest.mark.skipif(decord.load() is None, reason="decord has no wheel here")

# first number, frames: what playing the whole file shows, whatever its header says.
SHOWN = {
    "closed_gop.mp4": (0, 120),
    "closed_gop.mkv": (0, 120),
    "faststart.mp4": (0, 120),
    "open_gop.mp4": (0, 120),
    "h265_open_gop.mp4": (0, 120),
    "vp8.webm": (0, 120),
    "vp9.webm": (0, 120),
    "av1.mp4": (0, 60),
    "variable_rate.mp4": (0, 120),
    "variable_rate.mkv": (0, 120),
    "transport_stream.ts": (0, 60),
    "mpeg4.avi": (0, 60),
    "h264.avi": (0, 60),
    "edit_list.mp4": (27, 93),
    "cover.mp4": (0, 120),
    "ten_bit.mp4": (0, 24),
    "bt709.mp4": (0, 24),
    "five_frames.mp4": (0, 5),
    "one_frame.mp4": (0, 1),
    "no_last_picture.mp4": (0, 119),
}


def expected_numbers(name, num_frames):
    first, count = SHOWN[name]
    return (first + np.linspace(0, count - 1, num_frames).astype(int)).tolist()


@pytest.mark.parametrize("decoder", ["auto", "pyav"])
@pytest.mark.parametrize("num_frames", [1, 2, 7, 32])
@pytest.mark.parametrize("name", SHOWN)
def test_every_frame_is_the_one_asked_for(name, num_frames, decoder):
    frames = decode_frames(str(clip(name)), FrameSpec(num_frames, decoder=decoder))
    assert numbers_of(frames.pixels) == expected_numbers(name, num_frames)
    assert (np.diff(frames.timestamps) >= 0).all()


@pytest.mark.parametrize("name", ["variable_rate.mp4", "variable_rate.mkv"])
def test_times_are_the_streams_own_and_not_index_over_rate(name):
    frames = decode_frames(str(clip(name)), FrameSpec(120))
    steps = np.random.default_rng(0).integers(15, 120, 120)
    expected = (np.cumsum(steps) - steps[0]) / 1000
    np.testing.assert_allclose(frames.timestamps, expected, atol=1e-3)
    assert np.abs(frames.timestamps - np.arange(120) / 24).max() > 1


def test_times_count_from_the_start_of_the_file_where_the_clock_does_not():
    """Transport streams start at 1.4 s or later by their own clock."""
    frames = decode_frames(str(clip("transport_stream.ts")), FrameSpec(60))
    np.testing.assert_allclose(frames.timestamps, np.arange(60) / 24, atol=1e-4)


@pytest.mark.parametrize("decoder", ["auto", "pyav"])
@pytest.mark.parametrize(
    ("bounds", "numbers"),
    [
        ((1.0, 2.0), range(24, 49)),
        ((1.01, 1.99), range(25, 48)),
        ((4.5, 100.0), range(108, 120)),
        ((4.5, float("inf")), range(108, 120)),
        ((2.0, 2.0), [48]),
        ((2.03, 2.03), [49]),
        ((4.99, 5.0), [119]),
    ],
)
def test_a_clip_is_what_is_shown_between_its_bounds(bounds, numbers, decoder):
    frames = decode_frames(
        str(clip("closed_gop.mp4")), FrameSpec(len(numbers), decoder=decoder), bounds
    )
    assert numbers_of(frames.pixels) == list(numbers)
    np.testing.assert_allclose(frames.timestamps, np.array(numbers) / 24, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "bounds", "duration_s"),
    [
        ("closed_gop.mp4", None, 120 / 24),
        ("vp9.webm", None, 120 / 24),
        ("closed_gop.mp4", (1.0, 2.0), 25 / 24),
        ("one_frame.mp4", None, 1 / 24),
    ],
)
def test_length_and_height_are_those_of_the_file_and_not_of_the_samples(name, bounds, duration_s):
    frames = decode_frames(str(clip(name)), FrameSpec(4, size=(10, 12)), bounds)
    assert frames.pixels.shape[1:3] == (10, 12)
    assert frames.source.frame_height == draw(0).shape[0]
    assert frames.source.duration_s == pytest.approx(duration_s, rel=1e-3)


def test_length_of_a_frame_folder_counts_its_images(tmp_path):
    frames = decode_frames(str(write_folder(tmp_path / "frames", 9)), FrameSpec(4))
    assert frames.source.duration_s == 3.0


def test_bounds_count_from_the_first_frame_that_an_edit_list_shows():
    frames = decode_frames(str(clip("edit_list.mp4")), FrameSpec(2), (1.0, 2.0))
    assert numbers_of(frames.pixels) == [27 + 24, 27 + 48]


def test_a_still_at_the_end_is_shown_as_long_as_the_file_says():
    path = str(clip("long_last_frame.mp4"))
    assert probe(path).duration_s == pytest.approx(119 / 24 + 9)
    frames = decode_frames(path, FrameSpec(4), (8.0, 10.0))
    assert numbers_of(frames.pixels) == [119] * 4
    assert frames.warnings == ()
    assert numbers_of(decode_frames(path, FrameSpec(2)).pixels) == [0, 119]


def test_a_clip_behind_the_end_is_refused():
    with pytest.raises(ValueError, match=r"closed_gop.mp4: the clip starts at 7 s but .* 5.00 s"):
        decode_frames(str(clip("closed_gop.mp4")), FrameSpec(4), (7.0, 9.0))


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0)])
def test_bounds_in_the_wrong_order_are_refused(bounds):
    with pytest.raises(ValueError, match="must satisfy 0 <= start <= end"):
        decode_frames(str(clip("closed_gop.mp4")), FrameSpec(4), bounds)


def test_a_short_clip_repeats_frames_and_their_times():
    frames = decode_frames(str(clip("five_frames.mp4")), FrameSpec(8))
    assert numbers_of(frames.pixels) == [0, 0, 1, 1, 2, 2, 3, 4]
    np.testing.assert_allclose(frames.timestamps * 24, [0, 0, 1, 1, 2, 2, 3, 4], atol=1e-3)


def test_rounding_gives_an_even_number_of_frames_of_a_short_clip():
    frames = decode_frames(str(clip("five_frames.mp4")), FrameSpec(32, sampling="round"))
    assert numbers_of(frames.pixels) == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("sampling", "bounds", "numbers"),
    [
        ("per_second", None, [0, 24, 48, 72, 96]),
        ("per_second", (1.0, 3.0), [24, 48, 72]),
        ("thinned", (1.0, 2.99), [24, 40, 55, 71]),
        ("inner", (1.0, 2.99), [29, 34, 40, 45, 50, 56, 61, 66]),
        ("middles", (1.0, 3.0), [27, 33, 39, 45, 51, 57, 63, 69]),
        ("middles", (1.01, 1.03), [24, 24, 24, 24, 24, 25, 25, 25]),
    ],
)
def test_rules_count_frames_from_the_start_of_the_clip(sampling, bounds, numbers):
    """24 frames per second; MVBench's own rule has bounds in whole frames."""
    frames = decode_frames(str(clip("closed_gop.mp4")), FrameSpec(8, sampling=sampling), bounds)
    assert numbers_of(frames.pixels) == numbers


class TestDamagedFiles:
    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("empty.mp4", "the file is empty"),
            ("text.mp4", "not a video that FFmpeg can read"),
            ("sound.mp4", r"holds no video stream \(found: audio\)"),
            ("no_index.mp4", r"index \(moov\) is missing or damaged; .* probably truncated"),
            ("a_few_frames.mp4", "of 32 frames decoded; the file is probably truncated"),
        ],
    )
    @pytest.mark.parametrize("decoder", ["auto", "pyav"])
    def test_a_useless_file_is_an_error_of_one_line_that_names_it(self, name, reason, decoder):
        with pytest.raises(VideoDecodeError, match=reason) as caught:
            decode_frames(str(clip(name)), FrameSpec(32, decoder=decoder))
        assert str(caught.value).startswith(f"{clip(name)}: ")
        assert "\n" not in str(caught.value)

    def test_a_missing_file_is_an_error_that_names_it(self, tmp_path):
        with pytest.raises(VideoDecodeError, match=r"gone\.mp4: no such file"):
            decode_frames(str(tmp_path / "gone.mp4"), FrameSpec(4))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_forbidden_file_is_an_error_that_says_so(self, tmp_path):
        path = tmp_path / "secret.mp4"
        path.write_bytes(clip("five_frames.mp4").read_bytes())
        path.chmod(0)
        with pytest.raises(VideoDecodeError, match="Permission denied"):
            decode_frames(str(path), FrameSpec(4))

    @pytest.mark.parametrize("name", ["half.mp4", "half.mkv"])
    def test_half_a_file_is_used_as_far_as_it_goes_and_says_so(self, name):
        frames = decode_frames(str(clip(name)), FrameSpec(32))
        numbers = numbers_of(frames.pixels)
        assert numbers[0] == 0
        assert numbers == sorted(numbers)
        assert 40 <= numbers[-1] < 72
        assert any("s of 5.00 s announced" in warning for warning in frames.warnings)

    @pytest.mark.parametrize("name", ["half.mp4", "half.mkv"])
    def test_a_clip_in_the_missing_half_is_refused(self, name):
        with pytest.raises(VideoDecodeError, match=r"clip starts at 4 s .* probably truncated"):
            decode_frames(str(clip(name)), FrameSpec(4), (4.0, 5.0))

    @pytest.mark.parametrize("name", ["half.mp4", "half.mkv"])
    def test_a_clip_in_the_intact_half_needs_no_warning(self, name):
        frames = decode_frames(str(clip(name)), FrameSpec(13), (0.5, 1.0))
        assert numbers_of(frames.pixels) == list(range(12, 25))
        assert not any("announced" in warning for warning in frames.warnings)

    def test_a_frame_too_many_in_the_header_is_noted(self):
        frames = decode_frames(str(clip("no_last_picture.mp4")), FrameSpec(8))
        assert any("did not come out" in warning for warning in frames.warnings)

    def test_damage_in_the_middle_costs_frames_and_is_noted(self):
        frames = decode_frames(str(clip("damaged.mp4")), FrameSpec(120))
        assert frames.pixels.shape[0] == 120
        assert any("could not be decoded" in warning for warning in frames.warnings)
        numbers = numbers_of(frames.pixels)
        assert set(range(24)) <= set(numbers)


class TestSize:
    def test_frames_are_stretched_as_pil_does_it(self):
        spec = FrameSpec(3, size=(40, 30))
        large = decode_frames(str(clip("closed_gop.mp4")), FrameSpec(3)).pixels
        small = decode_frames(str(clip("closed_gop.mp4")), spec).pixels
        expected = [Image.fromarray(p).resize((30, 40), Image.Resampling.BICUBIC) for p in large]
        np.testing.assert_array_equal(small, np.stack([np.asarray(image) for image in expected]))

    def test_decord_and_pyav_give_equal_bytes(self):
        pytest.importorskip("decord")
        for name in ("closed_gop.mp4", "closed_gop.mkv", "rotated.mp4", "bt709.mp4"):
            by_decord, by_pyav = (
                decode_frames(str(clip(name)), FrameSpec(16, size=(98, 98), decoder=decoder))
                for decoder in ("decord", "pyav")
            )
            np.testing.assert_array_equal(by_decord.pixels, by_pyav.pixels)
            np.testing.assert_array_equal(by_decord.timestamps, by_pyav.timestamps)

    def test_an_area_keeps_the_aspect(self):
        spec = FrameSpec(4, sampling="round", min_pixels=4 * 784, max_pixels=8 * 784)
        assert decode_frames(str(clip("closed_gop.mp4")), spec).pixels.shape == (4, 56, 112, 3)

    @pytest.mark.parametrize("decoder", ["auto", "pyav"])
    def test_a_phone_video_is_turned_upright(self, decoder):
        frames = decode_frames(str(clip("rotated.mp4")), FrameSpec(4, decoder=decoder))
        assert frames.pixels.shape == (4, 128, 64, 3)
        turned_back = np.rot90(frames.pixels, axes=(1, 2))
        assert numbers_of(turned_back) == [0, 39, 79, 119]


class TestFolder:
    def test_images_are_frames_in_natural_order(self, tmp_path):
        folder = write_folder(tmp_path / "frames", 12, pattern="frame_{}.png")
        (folder / "notes.txt").write_text("not a frame")
        frames = decode_frames(str(folder), FrameSpec(12))
        assert numbers_of(frames.pixels) == list(range(1, 13))
        np.testing.assert_allclose(frames.timestamps, np.arange(12) / 3)

    def test_bounds_are_image_numbers_at_three_per_second(self, tmp_path):
        folder = write_folder(tmp_path / "frames", 30)
        frames = decode_frames(str(folder), FrameSpec(7), (2.0, 4.0))
        assert numbers_of(frames.pixels) == [6, 7, 8, 9, 10, 11, 12]

    def test_bounds_behind_the_last_image_are_refused(self, tmp_path):
        folder = write_folder(tmp_path / "frames", 6)
        with pytest.raises(VideoDecodeError, match=r"6 images end at 2.00 s"):
            decode_frames(str(folder), FrameSpec(4), (3.0, 4.0))

    def test_one_frame_per_second_is_for_files_only(self, tmp_path):
        """lmms-eval's LLaVA-Video spreads all its frames over a folder."""
        folder = write_folder(tmp_path / "frames", 30)
        frames = decode_frames(str(folder), FrameSpec(4, sampling="per_second"))
        assert numbers_of(frames.pixels) == numbers_of(
            decode_frames(str(folder), FrameSpec(4)).pixels
        )

    def test_an_empty_folder_is_refused(self, tmp_path):
        with pytest.raises(VideoDecodeError, match="holds no frames"):
            decode_frames(str(tmp_path), FrameSpec(4))

    def test_an_unreadable_image_is_named(self, tmp_path):
        folder = write_folder(tmp_path / "frames", 4)
        (folder / "00003.png").write_bytes(b"\x89PNG broken")
        with pytest.raises(VideoDecodeError, match=r"00003\.png: not a readable image"):
            decode_frames(str(folder), FrameSpec(4))

    def test_images_of_other_sizes_are_stretched_to_the_first(self, tmp_path):
        folder = write_folder(tmp_path / "frames", 2)
        Image.fromarray(draw(2)).resize((64, 32), Image.Resampling.NEAREST).save(
            folder / "00002.png"
        )
        frames = decode_frames(str(folder), FrameSpec(2))
        assert frames.pixels.shape == (2, 64, 128, 3)
        assert numbers_of(frames.pixels) == [1, 2]


@needs_decord
class TestChoiceOfDecoder:
    @pytest.mark.parametrize("name", ["closed_gop.mp4", "closed_gop.mkv", "faststart.mp4"])
    def test_auto_takes_decord_where_it_is_exact(self, name):
        assert decode_frames(str(clip(name)), FrameSpec(4)).decoder.startswith("decord ")

    @pytest.mark.parametrize(
        ("name", "doubt"),
        [
            ("open_gop.mp4", "open groups of pictures"),
            ("h265_open_gop.mp4", "codec hevc"),
            ("vp9.webm", "codec vp9"),
            ("variable_rate.mkv", "variable frame rate"),
            ("two_streams.mp4", "2 video streams"),
            ("edit_list.mp4", "an edit list hides frames"),
            ("transport_stream.ts", "container mpegts"),
            ("ten_bit.mp4", "pixel format yuv420p10le"),
        ],
    )
    def test_auto_takes_pyav_where_decord_is_in_doubt(self, name, doubt):
        assert probe(str(clip(name))).decord_doubt == doubt
        assert decode_frames(str(clip(name)), FrameSpec(4)).decoder.startswith("pyav ")

    def test_decord_on_request_decodes_but_warns(self):
        frames = decode_frames(str(clip("open_gop.mp4")), FrameSpec(32, decoder="decord"))
        assert frames.decoder.startswith("decord ")
        assert numbers_of(frames.pixels) != expected_numbers("open_gop.mp4", 32)
        assert frames.warnings == (
            "decord may return neighbouring frames on this file: open groups of pictures",
        )

    def test_decord_on_request_fails_where_it_cannot_read(self):
        with pytest.raises(VideoDecodeError, match=r"av1\.mp4: decord cannot open it"):
            decode_frames(str(clip("av1.mp4")), FrameSpec(4, decoder="decord"))

    def test_auto_falls_back_to_pyav_where_decord_fails(self):
        """The last picture of this file cannot be decoded, which no look at its packets tells."""
        frames = decode_frames(str(clip("no_last_picture.mp4")), FrameSpec(8))
        assert frames.decoder.startswith("pyav ")
        assert any("decord" in warning for warning in frames.warnings)

    def test_the_cache_identity_names_both_libraries(self):
        assert decoder_versions("auto") == (
            f"auto({decoder_versions('decord')}, {decoder_versions('pyav')})"
        )


def test_without_decord_auto_means_pyav(monkeypatch):
    monkeypatch.setitem(sys.modules, "decord", None)  # an import of None raises ImportError
    frames = decode_frames(str(clip("closed_gop.mp4")), FrameSpec(4))
    assert frames.decoder == decoder_versions("pyav")
    assert decoder_versions("auto") == f"auto({decoder_versions('pyav')})"
    with pytest.raises(ValueError, match="decoder 'decord' is not installed"):
        decode_frames(str(clip("closed_gop.mp4")), FrameSpec(4, decoder="decord"))


@pytest.mark.skipif(find_spec("torchcodec") is not None, reason="the extra is installed")
def test_torchcodec_without_its_extra_names_the_extra():
    for attempt in (
        lambda: decode_frames(str(clip("closed_gop.mp4")), FrameSpec(4, decoder="torchcodec")),
        lambda: decoder_versions("torchcodec"),
    ):
        with pytest.raises(ValueError, match=r"pip install 'tango-video\[torchcodec\]'"):
            attempt()


@pytest.mark.parametrize("order", [("av", "decord"), ("decord", "av")])
def test_av_and_decord_live_in_one_process_in_either_order(order):
    pytest.importorskip("decord")
    code = (
        f"import {order[0]}, {order[1]}, sys\n"
        "from tango_core.video import FrameSpec, decode_frames\n"
        "for decoder in ('decord', 'pyav'):\n"
        "    print(decode_frames(sys.argv[1], FrameSpec(8, decoder=decoder)).pixels.sum())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(clip("closed_gop.mp4"))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, second = run.stdout.split()
    assert first == second


def test_decoding_loads_no_torch():
    code = (
        "import sys\n"
        "from tango_core import FrameSpec, decode_frames\n"
        "decode_frames(sys.argv[1], FrameSpec(8))\n"
        "print(sorted({'torch', 'ray', 'transformers', 'pandas', 'pyarrow'} & set(sys.modules)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(clip("closed_gop.mp4"))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.strip() == "[]"


def test_no_file_stays_open():
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for name in ("closed_gop.mp4", "open_gop.mp4", "h264.avi", "half.mp4", "no_last_picture.mp4"):
        for _ in range(3):
            decode_frames(str(clip(name)), FrameSpec(4))
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_frames": 0}, "num_frames must be 1 or larger, got 0"),
        ({"num_frames": 8, "size": (0, 4)}, r"size must be \(height, width\)"),
        ({"num_frames": 8, "sampling": "floor"}, "unknown sampling 'floor'; choose one of"),
        ({"num_frames": 8, "decoder": "cv2"}, "unknown decoder 'cv2'; choose one of: auto"),
        ({"num_frames": 8, "size": (4, 4), "max_pixels": 9}, "exclude each other"),
        ({"num_frames": 8, "max_pixels": 9, "min_pixels": 10}, "must not exceed max_pixels"),
        ({"num_frames": 8, "folder_fps": 0.0}, "folder_fps must be a positive number"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FrameSpec(**options)
