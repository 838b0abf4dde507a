"""Profile mode does the same work, one method at a time, and says how long each step took."""

from __future__ import annotations

import pytest

from pipeline.clips import ANSWER_QUESTIONS, COMPRESS_VIDEO


@pytest.fixture
def measured(one_clip):
    """The clip after compression in profile mode."""
    return one_clip.start(COMPRESS_VIDEO, profile=True)(one_clip.decoded)


def test_a_clip_is_encoded_once_per_cache_and_measured_each_time(one_clip, measured):
    profile = measured.profile
    assert set(profile) == set(one_clip.plan.caches)
    passes = [times["vision"] for times in profile.values()]
    assert len(set(passes)) == 2
    assert measured.encode_ms == pytest.approx(sum(passes))
    assert all(times["peak_gib"] > 0 for times in profile.values())
    for name, cache in one_clip.plan.caches.items():
        entry = cache.read(measured.clip_key)
        assert entry.encode_ms == profile[name]["vision"]
        assert entry.compress_ms == profile[name]["compress"]


def test_answers_carry_the_times_of_their_own_method(one_clip, measured):
    result = one_clip.start(ANSWER_QUESTIONS, profile=True)(measured)
    profile = measured.profile
    caches = {cell.name: cell.cache for cell in one_clip.plan.methods}
    for row in result.answers:
        times = profile[caches[row.cell]]
        assert row.encode_ms == times["vision"]
        assert row.peak_gib >= times["peak_gib"]
        assert row.peak_of in ("process", "device")
