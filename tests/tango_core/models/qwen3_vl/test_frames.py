"""Frames, sizes and times of qwen-vl-utils 0.0.14, run on numbers of frames."""

import json
from types import SimpleNamespace

import av
import numpy as np
import pytest
from clips import clip
from golden_files import GOLDEN_DIR
from qwen3_checkpoints import MULTIPLE, NAME, frames_of, save_qwen3
from transformers import Qwen3VLProcessor
from transformers.video_utils import VideoMetadata

from tango_core.models import describe_model
from tango_core.models.qwen3_vl.layout import stamp
from tango_core.models.towers.patch_tower import mean_timestamps
from tango_core.video import FrameSpec, decode_frames
from tango_core.video.sampling import clip_window, frame_indices, size_of_area

_GOLDEN = json.loads((GOLDEN_DIR / "golden_frames2.json").read_text())
ROWS, SIZES_OF_AREA = _GOLDEN["rows"], _GOLDEN["videomme_v2_sizes"]
# Golden key -> (frames, sampling).
CASES = {
    "utils_32": (32, "round"),
    "utils_64": (64, "round"),
    "lmms_default_32": (32, "round"),
    "utils_default_2fps": (768, "two_per_second"),
    "utils_2fps_max64": (64, "two_per_second"),
    "vlmevalkit_v2_64": (64, "round"),
}
OF_AREA = FrameSpec(64, max_pixels=448 * 448, multiple=32, area=448 * 448)


@pytest.fixture(scope="module")
def published(qwen3_checkpoint):
    """The frames of a checkpoint of published size: tokens of 32 x 32 pixels instead of 8 x 8."""
    spec = describe_model(NAME, qwen3_checkpoint).frames
    factor = (32 // MULTIPLE) ** 2
    sizes = {"max_pixels": 768, "min_pixels": 128, "total_pixels": 115_200}
    for name, tokens in sizes.items():
        assert getattr(spec, name) == tokens * MULTIPLE**2
    return type(spec)(
        spec.num_frames,
        sampling=spec.sampling,
        multiple=32,
        **{name: getattr(spec, name) * factor for name in sizes},
    )


@pytest.mark.parametrize("key", CASES)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["file"]["frames"]))
def test_frames_sizes_and_times_are_those_of_the_release(published, row, key):
    file, golden = row["file"], row[key]
    wanted, sampling = CASES[key]
    found = frame_indices(file["frames"], wanted, sampling, file["fps"])
    if isinstance(golden, str):  # the release refuses; here the clip gives the frames it has
        assert "nframes should in interval" in golden
        assert len(found) == max(2, file["frames"] // 2 * 2)
        return
    assert len(found) == golden["num"]
    assert found[: len(golden["first"])].tolist() == golden["first"]
    assert found[-2:].tolist() == golden["last"]
    shown = OF_AREA if key == "vlmevalkit_v2_64" else published
    size = shown.frame_size(file["height"], file["width"], len(found))
    assert list(size) == golden["size"]
    assert size[0] * size[1] // 32**2 == golden["tokens_per_pair"]
    times = mean_timestamps(np.asarray(found / file["fps"], np.float64), 2)
    stamps = [stamp(one) for one in times.tolist()]
    count = len(golden["stamps"]) - 1
    assert [*stamps[:count], stamps[-1]] == golden["stamps"]


@pytest.mark.parametrize(("file", "stated", "shown"), SIZES_OF_AREA, ids=str)
def test_frames_of_an_area_are_those_of_vlmevalkits_video_mme_v2(file, stated, shown):
    assert size_of_area(*file, 448 * 448) == tuple(stated)
    assert OF_AREA.frame_size(*file, 64) == tuple(shown)


def test_the_area_of_a_checkpoint_replaces_its_bounds(qwen3_checkpoint):
    spec = describe_model(NAME, qwen3_checkpoint, frame_area=4096, min_pixels=6000)
    assert spec.frames.frame_size(40, 90, 8) == (48, 96)  # by area 42.7 x 96.0, in steps of 16
    assert spec.options.input_size() == "frame_area=4096"
    plain = describe_model(NAME, qwen3_checkpoint).frames.identity()
    assert "area" not in plain, "caches of earlier versions are those of no area"
    own = {name: value for name, value in plain.items() if name != "total_pixels"}
    assert spec.frames.identity() == {**own, "area": 4096, "max_pixels": 4096, "min_pixels": 0}


@pytest.mark.parametrize("window", [None, (1.0, 4.0)], ids=["whole", "bounded"])
def test_times_by_the_average_rate_are_those_of_the_stock_processor(qwen3_checkpoint, window):
    """Qwen3VLProcessor of transformers 5.23 knows numbers of frames and one rate, no times.

    Harnesses cut a bounded clip out first, so it begins with frame 0.
    """
    specs = {
        times: describe_model(NAME, qwen3_checkpoint, num_frames=8, frame_times=times)
        for times in ("own", "average_rate")
    }
    path = str(clip("variable_rate.mp4"))
    start = 0.0 if window is None else window[0]
    stated = {}
    for times, spec in specs.items():
        seconds = decode_frames(path, spec.frames, window).timestamps - start
        stated[times] = [stamp(one) for one in mean_timestamps(seconds, 2).tolist()]
    with av.open(path) as container:
        rate = float(container.streams.video[0].average_rate)
        own = [float(frame.time) for frame in container.decode(video=0)]
    first, stop = (0, len(own)) if window is None else clip_window(np.array(own), *window)
    stock = object.__new__(Qwen3VLProcessor)
    stock.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    stock.video_token, stock.vision_start_token, stock.vision_end_token = "", "", " "
    shown = VideoMetadata(
        stop - first, fps=rate, frames_indices=frame_indices(stop - first, 8, "round")
    )
    inputs = {"video_grid_thw": np.array([[4, 2, 2]]), "video_metadata": [shown]}
    expected = stock.replace_video_token(inputs, 0)
    assert " ".join([*stated["average_rate"], ""]) == expected
    assert stated["own"] != stated["average_rate"]
    assert "frame_times" in specs["own"].note
    assert specs["average_rate"].note == ""
    assert "times" not in specs["own"].frames.identity(), "older caches have own times"
    assert specs["average_rate"].frames.identity()["times"] == "average_rate"


def test_smaller_frames_by_choice(qwen3_checkpoint):
    small = describe_model(NAME, qwen3_checkpoint, max_pixels=20 * MULTIPLE**2)
    assert (small.frames.min_pixels, small.frames.max_pixels) == (1280, 1280)
    assert small.options.input_size() == "max_pixels=1280"
    large = describe_model(NAME, qwen3_checkpoint, max_pixels=10**9)
    assert large.frames.max_pixels == 768 * MULTIPLE**2  # as the release, which only lowers it


def test_only_what_changes_tokens_is_in_the_cache_s_identity(qwen3_checkpoint):
    plain = describe_model(NAME, qwen3_checkpoint)
    for same in ({"empty_blocks": "drop"}, {"outer_marks": True}, {"system_turn": True}):
        assert describe_model(NAME, qwen3_checkpoint, **same).identity() == plain.identity()
    for other in ({"companions": "anchor"}, {"max_pixels": 640}, {"min_pixels": 640}):
        assert describe_model(NAME, qwen3_checkpoint, **other).identity() != plain.identity()


def test_other_architectures_are_refused(qwen3, tmp_path):
    path = save_qwen3(qwen3, tmp_path)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace('"qwen3_vl"', '"qwen3_vl_moe"'))
    with pytest.raises(ValueError, match="holds a 'qwen3_vl_moe' model, not 'qwen3_vl'"):
        describe_model(NAME, str(path))
    (path / "config.json").write_text(text)
    with pytest.raises(ValueError, match="holds a 'qwen3_vl' model, not 'qwen2_5_vl'"):
        describe_model("qwen2.5-vl-7b", str(path))


def test_timestamps_are_the_middles_of_the_pairs(encoder):
    assert encoder.encode(frames_of(5, (1, 2))).timestamps.tolist() == [0.25, 1.25, 2.0]
