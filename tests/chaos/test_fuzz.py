"""Damaged files: those that once showed a fault, and a few hundred fresh ones."""

from __future__ import annotations

import pytest

from tests.chaos.fuzz.damage import Mutation, pieces_of
from tests.chaos.fuzz.run import KINDS, cases, run_case
from tests.chaos.fuzz.video_cases import VIDEOS, VideoCase, judged, video

# What the case showed -> the case, and the statuses of its row that are right.
FAULTS: dict[str, tuple[VideoCase, tuple[str, ...]]] = {
    "a header that names no codec was an AttributeError": (
        VideoCase("av1.mp4", (Mutation("remove", "stsd"),)),
        ("decode_failed",),
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
        ("decode_failed", "decode_damaged"),
    ),
    "times that go back got the time in front of them": (
        VideoCase("h264.mov", (Mutation("word", "ctts", 0, 0.5614, 3694808848),), (1.6, 2.0)),
        ("decode_damaged",),
    ),
    "a cluster that is there twice had its frames twice": (
        VideoCase("vp9.mkv", (Mutation("double", "Cluster", 0),)),
        ("decode_damaged",),
    ),
    "clusters whose times are swapped": (
        VideoCase("vp9.mkv", (Mutation("swap", "Timestamp", 1),), (1.0, 1.9)),
        ("ok", "decode_damaged"),
    ),
    "a file without one good packet was shown as it came": (
        VideoCase(
            "h264.mkv", (Mutation("bit", "CodecPrivate", 0, 0.2069, 2677923663),), (1.0, 1.9)
        ),
        ("decode_damaged", "decode_failed"),
    ),
    "a turned picture": (
        VideoCase("av1.mp4", (Mutation("zero", "mvhd", 0, 0.2472, 2990854856),)),
        ("ok",),
    ),
    "a sample that holds several frames": (
        VideoCase("av1.mp4", (Mutation("nudge", "file", 0, 0.9686, 2040888727),)),
        ("ok", "decode_damaged", "decode_failed"),
    ),
    "blocks in another order": (
        VideoCase("vp9.mkv", (Mutation("swap", "SimpleBlock", 19),)),
        ("ok", "decode_damaged"),
    ),
    "an index of chunks without content": (
        VideoCase("mpeg4.avi", (Mutation("remove", "idx1"),)),
        ("ok", "decode_damaged"),
    ),
    "half a file": (
        VideoCase("flv1.flv", (Mutation("cut", "file", 0, 0.5),)),
        ("decode_failed", "ok"),
    ),
    "no file": (VideoCase("pictures.gif", (Mutation("cut"),)), ("decode_failed",)),
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
