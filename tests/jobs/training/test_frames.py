"""Labels of rendered single frames."""

from __future__ import annotations

import numpy as np

from jobs.training.frames import KINDS, NUM_PATCHES, PATCH, SIDE, label_patches, labelled_frame
from tango_core.benchmarks.shapes.world import SCENES, clip_at


def test_patches_inside_a_box_say_what_is_there_and_far_ones_say_nothing():
    clip = clip_at("train", 0, 3, num_moments=1)
    labels = label_patches(clip, 0)
    grid = labels.kind.reshape(SIDE, SIDE)
    covered = np.zeros((SIDE, SIDE), dtype=bool)
    for box in clip.boxes(0):
        sprite = clip.sprites[box.sprite]
        x, y = box.center
        name = "plate" if sprite.kind == "plate" else sprite.name
        assert grid[int(y // PATCH), int(x // PATCH)] == 1 + KINDS.index(name)
        top, left = int(box.top // PATCH), int(box.left // PATCH)
        covered[top : int(box.bottom // PATCH) + 1, left : int(box.right // PATCH) + 1] = True
    assert (grid[~covered] == 0).all()
    assert labels.scene == SCENES.index(clip.scenes[0].kind)


def test_icons_are_counted_by_shape():
    clip = next(
        clip
        for index in range(50)
        if (clip := clip_at("train", 0, index, num_moments=1)).counted
        and len(clip.icons[clip.counted]) == 3
    )
    labels = label_patches(clip, 0)
    mine = labels.kind == 1 + KINDS.index(clip.counted)
    assert mine.any()
    assert (labels.count[mine] == 2).all()


def test_frames_are_equal_for_equal_indices_only():
    assert np.array_equal(labelled_frame(0, 5)[0], labelled_frame(0, 5)[0])
    assert not np.array_equal(labelled_frame(0, 5)[0], labelled_frame(1, 5)[0])
    assert labelled_frame(0, 4)[1].kind.shape == (NUM_PATCHES,)


def test_digits_can_take_the_place_of_icons():
    few, many = (
        [(labelled_frame(0, index, plates)[1].digit > 0).sum() for index in range(0, 40, 2)]
        for plates in (0.0, 0.6)
    )
    assert sum(many) > 2 * sum(few)
