"""Which parts of a recipe make another job, and that older recipes lack no key of today's."""

from __future__ import annotations

import pytest
import yaml

from jobs.config.identity import job_digest, jobs_digest
from jobs.config.recipe import parse_job

QWEN = {"name": "qwen3-vl-8b"}
VIDEOMME = {"name": "videomme", "root": "/data"}
SAME = [
    {"engine": "native"},
    {"executor": "local"},
    {"pools": {"answer": {"num_actors": 4, "num_gpus": 1}}},
    {"decode": {"timeout_s": 7}},
    {"max_failures": 3},
    {"cache": {"features": "all"}},
    {"model": {"name": "tiny", "encode_batch": 2}},
    {"model": {"name": "tiny", "compile": False}},
    {"benchmark": {"name": "shapes", "subtitles": False}},
]
OTHER = [
    {"limit": 5},
    {"shard": "0/2"},
    {"mode": "profile"},
    {"method": None, "methods": [{"name": "full"}, {"name": "tango", "retention": 0.1}]},
    {"decode": {"decoder": "pyav"}},
    {"cache": {"features": "all", "feature_dtype": "int8"}},
    {"controls": True},
    {"engine": "vllm"},
    *({"model": {"name": "tiny", **one}} for one in ({"num_frames": 4}, {"compile": True})),
    {"model": {"name": "tiny", "device": "cpu"}},
]
OF_PROMPTS = [{"empty_blocks": "drop"}, {"outer_marks": True}, {"companions": "anchor"}]


def job(**changes):
    content = {"benchmark": {"name": "shapes"}, "method": {"name": "tango", "retention": 0.1}}
    return parse_job({**content, "model": {"name": "tiny"}, **changes}, "recipe.yaml")


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        *((job(), job(**changes), True) for changes in SAME),
        *((job(), job(**changes), False) for changes in OTHER),
        *((job(model=QWEN), job(model={**QWEN, **one}), False) for one in OF_PROMPTS),
        (job(benchmark=VIDEOMME), job(benchmark={**VIDEOMME, "subtitles": True}), False),
    ],
)
def test_what_is_computed_makes_another_job_and_where_it_runs_does_not(first, second, same):
    assert (job_digest(first) == job_digest(second)) == same
    again = parse_job(yaml.safe_load(second.to_yaml()), "again")
    assert (again, job_digest(again)) == (second, job_digest(second))


def test_older_recipes_lack_no_key():
    written = yaml.safe_load(job().to_yaml())
    assert not {"engine", "cache", "controls", "answer"} & set(written)
    assert "compile" not in written["model"]
    assert "subtitles" not in written["benchmark"]


def test_the_jobs_of_one_recipe_have_one_digest():
    one, other = job(), job(limit=2)
    assert jobs_digest([one]) == job_digest(one)
    assert len({jobs_digest(jobs) for jobs in ([one], [one, other], [other, one])}) == 3
