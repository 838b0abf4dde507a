"""Where our frames and their sizes are those of the video processors of transformers.

What README.md of `tango_core/models` says of them, found with transformers 5.23 and 5.24.
Two of the processors need torchvision to be imported: `make test-vllm` runs them.
"""

import inspect
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from transformers.video_utils import VideoMetadata

from tango_core.video.sampling import FrameSpec, frame_indices

COUNTS = range(1, 17)
AVAILABLE = (16, 17, 100, 301, 3000)
SHAPES = (
    *((side, side) for side in (56, 224, 336, 448, 720)),
    *((96, 128), (144, 176), (240, 320), (240, 426), (270, 480), (320, 640), (360, 640)),
    *((480, 640), (480, 854), (540, 960), (576, 1024), (640, 320), (720, 1280), (1080, 1920)),
    (1920, 1080),
)
MODULES = "transformers.models.{0}.video_processing_{0}"
QWEN3_BUDGET = {"min_pixels": 128 * 32**2, "max_pixels": 768 * 32**2}


def processor(package, name):
    """A processor with the settings of its class."""
    try:
        return getattr(import_module(MODULES.format(package)), name)
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}")


@pytest.mark.parametrize(
    ("package", "name", "sampling", "equal"),
    [
        ("qwen3_vl", "Qwen3VLVideoProcessor", "round", 40),
        ("qwen2_vl", "Qwen2VLVideoProcessor", "round", 2),
        ("llava_onevision", "LlavaOnevisionVideoProcessor", "truncate", 6),
        ("internvl", "InternVLVideoProcessor", "inner", 7),
        ("internvl", "InternVLVideoProcessor", "middles", 11),
    ],
)
def test_frames_that_are_those_of_the_processor(package, name, sampling, equal):
    """Clips of five lengths, 1 to 16 frames of each."""
    cls = processor(package, name)
    own = {key: getattr(cls, key, None) for key in ("fps", "num_frames", "initial_shift")}
    same = 0
    for total in AVAILABLE:
        for count in COUNTS:
            video = VideoMetadata(total_num_frames=total, fps=30.0)
            asked = {"num_frames": count}
            if "temporal_patch_size" in inspect.signature(cls.sample_frames).parameters:
                asked |= {"temporal_patch_size": 2, "min_frames": 4, "max_frames": 768}
            try:
                theirs = np.asarray(cls.sample_frames(SimpleNamespace(**own), video, **asked))
            except (ValueError, ZeroDivisionError):  # more frames than there are; one frame
                continue
            ours = frame_indices(total, count, sampling)
            same += np.array_equal(ours, theirs)
    assert same == equal


def sizes_of_qwen3(count, height, width):
    """By the processor with the budget of its class, for a clip of some frames."""
    resize = import_module(MODULES.format("qwen3_vl")).smart_resize
    return resize(count, height, width, 2, 32, **QWEN3_BUDGET)


@pytest.mark.parametrize(("counts", "equal"), [(range(2, 17, 2), 160), (range(3, 17, 2), 135)])
def test_sizes_of_qwen3_share_the_clips_budget(counts, equal):
    """With the processor's budget divided by the frames; it counts frames in pairs."""
    same = 0
    for count in counts:
        shared = {name: bound / count for name, bound in QWEN3_BUDGET.items()}
        spec = FrameSpec(count, multiple=32, **shared)
        for shape in SHAPES:
            same += spec.frame_size(*shape, count) == sizes_of_qwen3(count, *shape)
    assert same == equal


def test_the_processor_of_qwen3_exceeds_its_budget_for_odd_numbers_of_frames():
    """It enlarges three frames of 320 x 640 that are over it: 4 frames decide, 3 are scaled."""
    assert sizes_of_qwen3(3, 320, 640) == (352, 704)
    most = {}
    for count in COUNTS[1:]:
        pairs = -(-count // 2)
        used = [np.prod(sizes_of_qwen3(count, *shape)) * 2 * pairs for shape in SHAPES]
        most[count] = round(float(max(used)) / QWEN3_BUDGET["max_pixels"], 2)
    assert {count: most[count] for count in (3, 5, 7, 9)} == {
        3: 1.33,
        5: 1.12,
        7: 1.12,
        9: 1.05,
    }
    assert all(most[count] <= 1 for count in COUNTS if count % 2 == 0)


def test_sizes_of_qwen2_5_are_those_of_the_processor():
    module = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    resize = import_module(module).smart_resize
    bounds = {"min_pixels": 128 * 28**2, "max_pixels": 768 * 28**2}
    for shape in SHAPES:
        found = {FrameSpec(n, multiple=28, **bounds).frame_size(*shape, n) for n in COUNTS}
        assert found == {resize(*shape, factor=28, **bounds)}
