"""Damaged files: those that once showed a fault, and a few hundred fresh ones."""

from __future__ import annotations

import pytest

from tests.chaos.fuzz.corpus import VIDEOS
from tests.chaos.fuzz.pieces import pieces_of
from tests.chaos.fuzz.run import KINDS, cases, run_case
from tests.chaos.fuzz.video_cases import VideoCase, judged
from tests.chaos.fuzz.videos import VIDEOS as WRITTEN
from tests.chaos.fuzz.videos import video


@pytest.mark.parametrize("about", VIDEOS)
def test_videos_that_showed_a_fault(about):
    case, statuses = VIDEOS[about]
    outcome = judged(case)
    assert not outcome.problem
    assert outcome.what.removeprefix("row ").partition(",")[0].partition(" ")[0] in statuses


@pytest.mark.parametrize("name", WRITTEN)
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
