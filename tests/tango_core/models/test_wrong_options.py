"""Settings of models that no model takes: one line that names the setting and what is allowed."""

import pytest

from tango_core.models import describe_model

ONEVISION, VIDEO = "llava-onevision-7b", "llava-video-7b"
QWEN, QWEN3, QWEN35 = "qwen2.5-vl-7b", "qwen3-vl-8b", "qwen3.5-9b"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (ONEVISION, {"dtype": "int8"}, "must be one of auto, float32, float16, bfloat16"),
        (ONEVISION, {"device": "tpu"}, "must be one of auto, cpu, cuda"),
        (ONEVISION, {"sampling": "floor"}, "must be one of truncate, round, .*, got 'floor'"),
        (ONEVISION, {"compile": "yes"}, "must be true or false, got 'yes'"),
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
