"""What enters the name of a token cache, byte for byte as the first release wrote it.

A change here makes every cache on disk a miss.
"""

import json
from dataclasses import replace

import pytest

from tango_core.models import describe_model

START = (
    '{"name": "%s", "digest": "D", "dtype": "float32", "frames": {"num_frames": %d, "size": %s, '
)
LLAVA = (
    START + '"sampling": "%s", "decoder": "auto", "max_pixels": null, "min_pixels": 0, "multiple": '
    '28, "folder_fps": 3.0}, "decoder": "V", "pooling": "%s", "sinks": null}'
)
QWEN = (
    START + '"sampling": "round", "decoder": "auto", "max_pixels": %d, "min_pixels": %d, '
    '"multiple": 8, "folder_fps": 3.0}, "decoder": "V", "pooling": null, "sinks": null}'
)
QWEN3 = (
    START + '"sampling": "round", "decoder": "auto", "max_pixels": 49152, "min_pixels": 8192, '
    '"multiple": 8, "folder_fps": 3.0, "total_pixels": 7372800%s}, "decoder": "V", "pooling": '
    'null, "companions": "merge", "sinks": null}'
)
INTERNVL = LLAVA.replace('"pooling": "%s"', '"pooling": null')


LARGER_STEP = LLAVA.replace('"sinks"', '"pooling_step": %d, "sinks"')


ONEVISION = ("llava-onevision-7b", 32, "[28, 28]", "truncate", "bilinear")
VIDEO = ("llava-video-7b", 64, "[28, 28]", "truncate", "average")
PIXELS = ("qwen2.5-vl-7b", 32, "null", 16384, 8192)
FEWER_PIXELS = {"position_rule": "hf5", "seconds_per_grid": 0.5, "max_pixels": 640}
BILINEAR = {"pooling": "bilinear", "time_instruction": "none", "sampling": "middles"}
LMMS_EVAL = {"frame_label": "lmms_eval", "sampling": "middles"}


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("tiny", {}, LLAVA % ("tiny", 8, "[128, 128]", "truncate", "bilinear")),
        ("llava-onevision-7b", {}, LLAVA % ONEVISION),
        ("llava-onevision-7b", {"encode_batch": 3}, LLAVA % ONEVISION),
        ("llava-video-7b", {}, LLAVA % VIDEO),
        ("llava-video-7b", BILINEAR, LLAVA % (*VIDEO[:3], "middles", "bilinear")),
        ("llava-video-7b", {"pooling_step": 2}, LLAVA % VIDEO),
        ("llava-onevision-7b", {"pooling_step": 4}, LARGER_STEP % (*ONEVISION, 4)),
        ("qwen2.5-vl-7b", {}, QWEN % PIXELS),
        ("qwen2.5-vl-7b", FEWER_PIXELS, QWEN % (*PIXELS[:3], 640, 640)),
        ("qwen3-vl-8b", {}, QWEN3 % ("qwen3-vl-8b", 32, "null", "")),
        ("qwen3-vl-8b", {"outer_marks": True}, QWEN3 % ("qwen3-vl-8b", 32, "null", "")),
        (
            "qwen3-vl-8b",
            {"frame_times": "average_rate"},
            QWEN3 % ("qwen3-vl-8b", 32, "null", ', "times": "average_rate"'),
        ),
        ("internvl3.5-8b", {}, INTERNVL % ("internvl3.5-8b", 32, "[32, 32]", "inner")),
        ("internvl3.5-8b", LMMS_EVAL, INTERNVL % ("internvl3.5-8b", 32, "[32, 32]", "middles")),
    ],
)
def test_identity_is_that_of_the_first_release(small_paths, name, options, expected):
    spec = describe_model(name, small_paths.get(name), **options)
    identity = replace(spec, digest="D").identity() | {"decoder": "V"}
    assert json.dumps(identity) == expected


def test_the_embedded_model_is_the_one_that_was_published():
    assert describe_model("tiny").digest == "24bf9040190b96000a73198ff68be28501a6a1ab"


def test_one_thinned_frame_is_another_cache_than_when_it_was_the_first_frame_alone():
    spec = describe_model("tiny", sampling="thinned", num_frames=1)
    assert spec.identity()["frames"]["rule"] == 2
    assert "rule" not in describe_model("tiny", sampling="thinned").identity()["frames"]
