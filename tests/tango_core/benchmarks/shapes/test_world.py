"""The embedded world: all is inside the frame, apart, seen by samplers, and drawn only once."""

import hashlib
import re
from itertools import combinations

import numpy as np
import pytest

from tango_core.benchmarks.shapes import world
from tango_core.benchmarks.shapes.questions import questions
from tango_core.benchmarks.shapes.render import render


@pytest.fixture(scope="module")
def clips():
    return [world.clip_at("test", 0, index) for index in range(150)]


def content(clip):
    """What is in a clip, its name left out, to a thousandth of a pixel."""
    text = re.sub(
        r"-?\d+\.\d+(e-?\d+)?",
        lambda number: f"{float(number[0]):.3f}",
        repr((clip.scenes, clip.sprites)),
    )
    return hashlib.sha256(text.encode()).hexdigest()


def test_no_clip_is_in_two_splits_or_seeds():
    keys = [(split, seed) for split in ("train", "validation", "test") for seed in (0, 1, 7)]
    seen = [content(world.clip_at(*key, index)) for key in keys for index in range(60)]
    assert len(set(seen)) == len(seen) == 540
    frames = [
        render(world.clip_at(*key, index), [0]).tobytes() for key in keys for index in range(3)
    ]
    assert len(set(frames)) == 27


def test_a_changed_world_needs_a_new_version():
    """If this fails: raise `WORLD_VERSION` and note the digests of clips and questions."""
    clips = [world.clip_at("train", 0, index) for index in range(20)]
    digests = tuple(
        hashlib.sha256(text.encode()).hexdigest()[:16]
        for text in ("".join(map(content, clips)), repr([questions(clip) for clip in clips]))
    )
    assert digests == {1: ("c6e05de07a73afc2", "259087159904f1af")}[world.WORLD_VERSION]


def test_moments_can_be_rendered_alone_and_in_any_order(clips):
    for clip in clips[:4]:
        full = render(clip)
        picked = [11, 3, 0, 15]
        assert full.shape == (world.NUM_MOMENTS, world.FRAME, world.FRAME, 3)
        np.testing.assert_array_equal(render(clip, picked), full[picked])


def test_everything_stays_inside_the_frame_and_apart(clips):
    for clip in clips:
        for moment in range(clip.num_moments):
            boxes = clip.boxes(moment)
            for box in boxes:
                assert 0 <= box.left < box.right <= world.FRAME
                assert 0 <= box.top < box.bottom <= world.FRAME
            for one, two in combinations(boxes, 2):
                beside = one.right <= two.left or two.right <= one.left
                assert beside or one.bottom <= two.top or two.bottom <= one.top


@pytest.mark.parametrize("num_frames", [8, 9, 12, 16, 32])
@pytest.mark.parametrize("rounded", [False, True])
def test_no_sampler_of_eight_or_more_frames_misses_anything(clips, num_frames, rounded):
    places = np.linspace(0, world.NUM_MOMENTS - 1, num_frames)
    seen = set((places.round() if rounded else places).astype(int).tolist())
    for clip in clips:
        for thing in (*clip.sprites, *clip.scenes):
            assert not seen.isdisjoint(range(thing.start, thing.stop))
