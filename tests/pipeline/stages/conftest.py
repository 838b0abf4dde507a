"""A plan over one clip on the embedded model, and the clip decoded."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from jobs_for_tests import job, plan_of

from pipeline.clips import DECODE_VIDEO, Clip, Stage
from pipeline.plan import Plan
from pipeline.rows import clips_in
from pipeline.settings import Settings

METHODS = [
    {"name": "full"},
    {"name": "uniform", "retention": 0.25},
    {"name": "fastv", "retention": 0.75},
]


@dataclass(frozen=True)
class OneClip:
    """What a stage is tested on.

    Attributes:
        plan: Two caches, both without the clip, and three methods; `fastv` shares that of `full`.
        row: The clip as the plan has it.
        decoded: The same after the decode stage.
    """

    plan: Plan
    row: Clip
    decoded: Clip

    def start(self, stage: Stage, *, profile: bool = False):
        """A stage that is ready to take rows."""
        return stage.start(self.plan, Settings("local", share_prefix=not profile, profile=profile))


@pytest.fixture(scope="session")
def decoded_clip(tmp_path_factory):
    """The recipe's clips, and the first of them decoded."""
    recipe = job(tmp_path_factory.mktemp("shapes"), limit=1, methods=METHODS)
    plan = plan_of(recipe, tmp_path_factory.mktemp("cache"))
    (row,) = clips_in(plan.clips)
    return recipe, DECODE_VIDEO.start(plan, Settings("local"))(row)


@pytest.fixture
def one_clip(decoded_clip, tmp_path):
    """The clip with caches of this test's own; their names do not depend on the directory."""
    recipe, decoded = decoded_clip
    plan = plan_of(recipe, tmp_path / "cache")
    for cache in plan.caches.values():
        cache.prepare()
    (row,) = clips_in(plan.clips)
    return OneClip(plan, row, decoded)
