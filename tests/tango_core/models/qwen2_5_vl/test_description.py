"""What is known of a checkpoint before its weights are read, and its settings."""

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
