"""What is known of a checkpoint before its weights are read, and its settings."""

import pytest
from qwen_by_hand import NAME
from qwen_checkpoints import MULTIPLE, save_qwen

from tango_core.models import describe_model


class TestDescription:
    def test_frames_have_the_publication_s_size(self, qwen, tmp_path):
        path = save_qwen(qwen, tmp_path)
        frames = describe_model(NAME, str(path)).frames
        assert (frames.num_frames, frames.sampling, frames.size) == (32, "round", None)
        assert frames.multiple == MULTIPLE
        assert (frames.min_pixels, frames.max_pixels) == (128 * 64, 256 * 64)
        small = describe_model(NAME, str(path), max_pixels=1000).frames
        assert (small.min_pixels, small.max_pixels) == (1000, 1000)
        area = describe_model(NAME, str(path), frame_area=448 * 448).frames
        assert area.frame_size(360, 640, 8) == area.frame_size(1080, 1920, 8) == (336, 592)

    def test_positions_are_no_part_of_the_cache_s_identity_and_sizes_are(self, encoder):
        path = encoder.spec.path
        plain = describe_model(NAME, path)
        other = describe_model(NAME, path, position_rule="hf5", seconds_per_grid=0.5)
        assert (other.options.position_rule, other.options.seconds_per_grid) == ("hf5", 0.5)
        assert other.identity() == plain.identity()
        assert describe_model(NAME, path, max_pixels=640).identity() != plain.identity()

    def test_other_families_refuse_its_settings_and_checkpoints(self, encoder, checkpoint):
        with pytest.raises(ValueError, match="position_rule is no setting of model llava-onevis"):
            describe_model("llava-onevision-7b", str(checkpoint), position_rule="hf5")
        with pytest.raises(ValueError, match="holds a 'llava_onevision' model, not 'qwen2_5_vl'"):
            describe_model(NAME, str(checkpoint))
