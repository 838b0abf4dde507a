"""The embedded world: all is inside the frame, apart, seen by samplers, and drawn only once."""

import hashlib
import re
from itertools import combinations, pairwise

import numpy as np
import pytest

from tango_core.benchmarks.shapes.render import render
from tango_core.benchmarks.shapes.world import (
    CAMERAS,
    COLORS,
    FRAME,
    NUM_MOMENTS,
    SCENES,
    SHAPES,
    WORLD_VERSION,
    clip_at,
    dense_clip_at,
    sample_moments,
)


@pytest.fixture(scope="module")
def clips():
    return [clip_at("test", 0, index) for index in range(150)]


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
    seen = [content(clip_at(*key, index)) for key in keys for index in range(60)]
    assert len(set(seen)) == len(seen) == 540
    frames = [render(clip_at(*key, index), [0]).tobytes() for key in keys for index in range(3)]
    assert len(set(frames)) == 27


def test_a_changed_world_needs_a_new_version():
    """If this fails: raise `WORLD_VERSION` and note its hash."""
    digest = "".join(content(clip_at("train", 0, index)) for index in range(20))
    known = {1: "c6e05de07a73afc2"}
    assert hashlib.sha256(digest.encode()).hexdigest()[:16] == known[WORLD_VERSION]


def test_moments_can_be_rendered_alone_and_in_any_order(clips):
    for clip in clips[:4]:
        full = render(clip)
        picked = [11, 3, 0, 15]
        assert full.shape == (NUM_MOMENTS, FRAME, FRAME, 3)
        np.testing.assert_array_equal(render(clip, picked), full[picked])


def test_everything_stays_inside_the_frame_and_apart(clips):
    for clip in clips:
        for moment in range(clip.num_moments):
            boxes = clip.boxes(moment)
            for box in boxes:
                assert 0 <= box.left < box.right <= FRAME
                assert 0 <= box.top < box.bottom <= FRAME
            for one, two in combinations(boxes, 2):
                beside = one.right <= two.left or two.right <= one.left
                assert beside or one.bottom <= two.top or two.bottom <= one.top


def test_scenes_follow_each_other_without_a_gap(clips):
    for clip in clips:
        edges = [scene.start for scene in clip.scenes] + [clip.num_moments]
        assert edges[0] == 0
        assert [scene.stop for scene in clip.scenes] == edges[1:]
        assert all(stop - start >= 4 for start, stop in pairwise(edges))
        assert len({scene.kind for scene in clip.scenes}) == len(clip.scenes)
        for sprite in clip.sprites:
            scene = clip.scenes[sprite.scene]
            assert scene.start <= sprite.start < sprite.stop <= scene.stop


@pytest.mark.parametrize("num_frames", [8, 9, 12, 16, 32])
@pytest.mark.parametrize("rounded", [False, True])
def test_no_sampler_of_eight_or_more_frames_misses_anything(clips, num_frames, rounded):
    places = np.linspace(0, NUM_MOMENTS - 1, num_frames)
    seen = set((places.round() if rounded else places).astype(int).tolist())
    for clip in clips:
        for thing in (*clip.sprites, *clip.scenes):
            assert not seen.isdisjoint(range(thing.start, thing.stop))


def test_sampling_is_uniform_and_truncated():
    assert sample_moments(16, 8) == (0, 2, 4, 6, 8, 10, 12, 15)
    assert sample_moments(16, 16) == tuple(range(16))
    assert sample_moments(2, 8) == (0, 1)


def test_about_half_of_the_cameras_move(clips):
    shares = {camera: np.mean([clip.camera == camera for clip in clips]) for camera in CAMERAS}
    assert 0.38 <= shares["static"] <= 0.6
    assert min(shares.values()) >= 0.08
    for clip in clips:
        still = all(len(set(scene.views)) == 1 for scene in clip.scenes)
        assert still == (clip.camera == "static")


def test_background_and_icons_move_together_with_the_camera(clips):
    clip = next(c for c in clips if c.camera == "pan" and not all(s.moves for s in c.sprites))
    number, sprite = next((i, s) for i, s in enumerate(clip.sprites) if not s.moves)
    scene = clip.scenes[sprite.scene]
    first, last = clip.box(number, sprite.start), clip.box(number, sprite.stop - 1)
    before, after = (scene.views[m - scene.start] for m in (sprite.start, sprite.stop - 1))
    assert first.center[0] - last.center[0] == pytest.approx(after[0] - before[0])
    assert first.center[1] - last.center[1] == pytest.approx(after[1] - before[1])
    assert (before[0], before[1]) != (after[0], after[1])


@pytest.mark.parametrize("num_moments", [1, 2, 4, 8])
def test_shorter_clips_have_fewer_scenes_and_whole_lives(num_moments):
    for index in range(40):
        clip = clip_at("train", 0, index, num_moments)
        assert clip.num_moments == num_moments == clip.scenes[-1].stop
        assert len(clip.scenes) <= max(1, num_moments // 2)
        assert render(clip).shape == (num_moments, FRAME, FRAME, 3)
        assert content(clip) != content(clip_at("train", 0, index))


def test_a_dense_clip_is_crowded_and_of_all_kinds():
    clips = [dense_clip_at("train", 0, index) for index in range(60)]
    assert np.mean([len(clip.sprites) for clip in clips]) > 6
    icons = [s for clip in clips for s in clip.sprites if s.kind == "icon"]
    assert {s.name for s in icons} == set(SHAPES)
    assert {s.color for s in icons} == set(COLORS)
    assert {clip.scenes[0].kind for clip in clips} == set(SCENES)
    assert render(clips[0]).shape == (1, FRAME, FRAME, 3)


def test_static_frames_differ_by_noise_only(clips):
    clip = next(c for c in clips if c.camera == "static")
    first, second = (render(clip, [moment]).astype(float) for moment in (0, 1))
    changed = [box for moment in (0, 1) for box in clip.boxes(moment)]
    mask = np.ones((FRAME, FRAME), dtype=bool)
    for box in changed:
        mask[int(box.top) : int(box.bottom) + 1, int(box.left) : int(box.right) + 1] = False
    difference = (second - first)[0][mask]
    assert 6 < difference.std() < 16
    assert abs(difference.mean()) < 16


@pytest.mark.parametrize("kind", SCENES)
def test_every_scenery_is_textured_and_grey(kind):
    found = (clip_at("train", 0, index) for index in range(200))
    clips = [clip for clip in found if clip.scenes[0].kind == kind][:4]
    for clip in clips:
        frame = render(clip, [0])[0].astype(float)
        empty = np.ones((FRAME, FRAME), dtype=bool)
        for box in clip.boxes(0):
            empty[int(box.top) : int(box.bottom) + 1, int(box.left) : int(box.right) + 1] = False
        pixels = frame[empty]
        assert pixels.mean(axis=1).std() > 8
        assert (pixels.max(axis=1) - pixels.min(axis=1)).mean() < 70
