"""What is known of a checkpoint before its weights are read, and its settings."""

import pytest
from internvl_checkpoints import GRID, NAME, SIZE

from tango_core.models import describe_model, harness_settings


def test_a_frame_is_one_tile(internvl_checkpoint):
    spec = describe_model(NAME, internvl_checkpoint)
    assert (spec.frames.num_frames, spec.frames.sampling) == (32, "inner")
    assert (spec.frames.size, spec.grid) == ((SIZE, SIZE), GRID)
    assert spec.provides == {"attention", "frame_embeddings", "keys", "saliency"}


@pytest.mark.parametrize(
    ("num_frames", "words"),
    [
        (1, "each of 1 frames into 12 tiles"),
        (16, "each of 16 frames into 4 tiles"),
        (32, "each of 32 frames into 2 tiles and a thumbnail, here a frame is one tile"),
        (33, ""),
        (64, ""),
    ],
)
def test_under_lmms_eval_a_note_says_where_it_shows_more_tiles(
    internvl_checkpoint, num_frames, words
):
    settings = harness_settings(NAME, "lmms_eval")
    assert settings == {"sampling": "middles", "frame_label": "lmms_eval"}
    spec = describe_model(NAME, internvl_checkpoint, num_frames=num_frames, **settings)
    assert words in spec.note
    assert bool(spec.note) == bool(words)
    assert describe_model(NAME, internvl_checkpoint, num_frames=num_frames).note == ""
