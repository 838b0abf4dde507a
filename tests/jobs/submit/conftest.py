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

    def build(recipe=None, **changes):
        jobs = (parse_job({**RECIPE, **(recipe or {})}, "recipe.yaml"),)
        sent = {"jobs": jobs, "recipe": "method: {}", "recipe_name": "recipe.yaml"}
        return Request(**{"command": "evaluate", **sent, **changes})

    return build
