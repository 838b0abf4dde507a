"""Damaged files: those that once showed a fault, and a few hundred fresh ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.fuzz.damage import Mutation, pieces_of
from tests.chaos.fuzz.run import KINDS, cases, run_case
from tests.chaos.fuzz.video_cases import VIDEOS, VideoCase, judged, video

OK, FAILED, DAMAGED = ("ok",), ("decode_failed",), ("decode_damaged",)


def one(name: str, *mutation: Any, clip: tuple[float, float] | None = None) -> VideoCase:
    """A video with one mutation."""
    return VideoCase(name, (Mutation(*mutation),), clip)


# What the case showed -> the case, and the statuses of its row that are right.
FAULTS: dict[str, tuple[VideoCase, tuple[str, ...]]] = {
    "a header that names no codec was an AttributeError": (
        one("av1.mp4", "remove", "stsd"),
        FAILED,
    ),
    "a stream that begins inside the file was an IndexError": (
        VideoCase(
            "h264.ts",
            (
                Mutation("name", "first packet", 52, 0.3839, 1221798558),
                Mutation("name", "packet", 5, 0.3684, 785088341),
            ),
            (1.0, 1.9),
        ),
        FAILED + DAMAGED,
    ),
    "times that go back got the time in front of them": (
        one("h264.mov", "word", "ctts", 0, 0.5614, 3694808848, clip=(1.6, 2.0)),
        DAMAGED,
    ),
    "a cluster that is there twice had its frames twice": (
        one("vp9.mkv", "double", "Cluster", 0),
        DAMAGED,
    ),
    "clusters whose times are swapped": (
        one("vp9.mkv", "swap", "Timestamp", 1, clip=(1.0, 1.9)),
        OK + DAMAGED,
    ),
    "a file without one good packet was shown as it came": (
        one("h264.mkv", "bit", "CodecPrivate", 0, 0.2069, 2677923663, clip=(1.0, 1.9)),
        FAILED + DAMAGED,
    ),
    "a turned picture": (one("av1.mp4", "zero", "mvhd", 0, 0.2472, 2990854856), OK),
    "a sample that holds several frames": (
        one("av1.mp4", "nudge", "file", 0, 0.9686, 2040888727),
        OK + FAILED + DAMAGED,
    ),
    "blocks in another order": (one("vp9.mkv", "swap", "SimpleBlock", 19), OK + DAMAGED),
    "an index of chunks without content": (one("mpeg4.avi", "remove", "idx1"), OK + DAMAGED),
    "half a file": (one("flv1.flv", "cut", "file", 0, 0.5), OK + FAILED),
    "no file": (one("pictures.gif", "cut"), FAILED),
}


@pytest.mark.parametrize("about", FAULTS)
def test_videos_that_showed_a_fault(about):
    case, statuses = FAULTS[about]
    outcome = judged(case)
    assert not outcome.problem
    assert outcome.what.removeprefix("row ").partition(",")[0].partition(" ")[0] in statuses


@pytest.mark.parametrize("name", VIDEOS)
def test_what_is_written_is_intact_and_its_structure_is_known(name):
    assert judged(VideoCase(name, ())).what == "ok, as the intact file"
    assert len(pieces_of(video(name))) > 5 or name.endswith((".gif", ".flv", ".mpg"))


def test_damaged_caches_and_answers_are_refused_or_read_as_written():
    found = [run_case(*case) for case in cases(0, 60, ("files",))]
    assert [(one.about, one.problem, one.mutations) for one in found if one.problem] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_fresh_cases(kind):
    found = [run_case(*case) for case in cases(100_000, 60, (kind,))]
    assert [(one.about, one.problem, one.mutations) for one in found if one.problem] == []
