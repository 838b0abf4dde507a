"""Which executor a job gets that leaves the choice open."""

from __future__ import annotations

import pytest

from pipeline.clips import Pools
from pipeline.executors.choice import LOOP_UP_TO, choose
from pipeline.resources.pools import ActorPool

SEVERAL = Pools(answer=ActorPool(num_actors=2))


@pytest.mark.parametrize(
    ("executor", "options"),
    [
        ("local", {"num_clips": LOOP_UP_TO}),
        ("ray", {"num_clips": LOOP_UP_TO + 1}),
        ("ray", {"num_clips": 1, "address": "auto"}),
        ("ray", {"num_clips": 1, "pools": SEVERAL}),
        ("ray", {"num_clips": None, "address": "auto"}),
        ("local", {"num_clips": 10**6, "profile": True}),
        ("local", {"num_clips": None, "address": "auto", "profile": True}),
    ],
)
def test_auto_takes_ray_where_it_repays_its_start(executor, options):
    assert choose("auto", **options).executor == executor


@pytest.mark.parametrize("wanted", ["ray", "local"])
def test_what_the_recipe_says_is_taken(wanted):
    for num_clips in (None, 1, 10**6):
        assert choose(wanted, num_clips=num_clips, pools=SEVERAL).executor == wanted


def test_an_unknown_number_of_clips_leaves_it_open():
    assert choose("auto", num_clips=None) is None
