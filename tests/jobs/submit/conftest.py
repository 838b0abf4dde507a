"""Requests as a client builds them."""

from __future__ import annotations

import pytest

from jobs.config.recipe import parse_job
from jobs.submit.request import Request

RECIPE = {
    "benchmark": {"name": "shapes"},
    "model": {"name": "tiny"},
    "method": {"name": "tango", "retention": 0.1},
}


@pytest.fixture
def request_for():
    """`request_for(command=..., recipe={...})` builds a request."""

    def build(recipe=None, counts=None, **changes):
        content = {**RECIPE, **(recipe or {})}
        jobs = tuple(
            parse_job({**content, "model": {"name": "tiny", "num_frames": count}}, "recipe.yaml")
            for count in counts or [None]
        )
        return Request(
            **{"jobs": jobs, "command": "evaluate", "recipe_name": "recipe.yaml", **changes}
        )

    return build
