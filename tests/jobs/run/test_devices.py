"""The dtype `auto` follows from the devices that the workers will have, not from this host."""

from __future__ import annotations

import json

import pytest
import torch
from llava_checkpoints import build_llava, save_llava

from jobs.config.recipe import Job, parse_job
from jobs.run.build import build, executor_of, make_settings
from pipeline.executors import cluster
from pipeline.resources.devices import placed

BOTH = {"compress": {"num_gpus": 1}, "answer": {"num_gpus": 1}}
ENCODER_ALONE = {"compress": {"num_gpus": 0.5}}
SEVERAL = {"answer": {"num_actors": 2}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint whose own dtype is bfloat16."""
    path = save_llava(build_llava(), tmp_path_factory.mktemp("bfloat16") / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return path


@pytest.fixture
def host(monkeypatch):
    """Decides what this host has."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    return lambda gpus: monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)


@pytest.fixture
def nodes(monkeypatch):
    """Decides what the cluster has; nothing is joined."""

    class Joined:
        def __init__(self, found):
            self.found = found

        def __enter__(self):
            return self.found

        def __exit__(self, *_):
            return None

    def has(*found):
        monkeypatch.setattr(cluster, "connected", lambda *_: Joined(list(found)))

    return has


def recipe(checkpoint, **changes) -> Job:
    content = {
        "benchmark": {"name": "shapes"},
        "methods": [{"name": "full"}],
        "model": {"name": "llava-onevision-7b", "path": str(checkpoint)},
        **changes,
    }
    return parse_job(content, "test")


def devices(job: Job, address: str | None = None, executor: str = "ray"):
    """The dtype of the plan, and where each half is loaded."""
    model = build(job, address).model
    settings = make_settings(job, address, executor, job.pools)
    found = [placed(model, settings, stage) for stage in ("compress", "answer")]
    assert {one.dtype for one in found} == {model.dtype}
    return model.dtype, *(one.device for one in found)


@pytest.mark.parametrize("gpus_here", [False, True])
@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        (BOTH, ("bfloat16", "cuda", "cuda")),
        (ENCODER_ALONE, ("bfloat16", "cuda", "cpu")),
        (SEVERAL, ("float32", "cpu", "cpu")),
        ({}, ("float32", "cpu", "cpu")),
    ],
)
def test_on_ray_the_pools_decide_and_not_the_host(checkpoint, host, gpus_here, pools, expected):
    host(gpus_here)
    assert devices(recipe(checkpoint, executor="ray", pools=pools)) == expected


@pytest.mark.parametrize(("gpus_here", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_in_a_loop_this_process_decides(checkpoint, host, gpus_here, dtype):
    host(gpus_here)
    for pools in ({}, BOTH):
        job = recipe(checkpoint, executor="local", pools=pools)
        assert devices(job, executor="local") == (dtype, "auto", "auto")


@pytest.mark.parametrize("gpus_here", [False, True])
@pytest.mark.parametrize(("gpus_there", "dtype"), [(0.0, "float32"), (4.0, "bfloat16")])
def test_pools_auto_ask_the_cluster(checkpoint, host, nodes, gpus_here, gpus_there, dtype):
    """A head with CPUs alone plans for workers with GPUs."""
    host(gpus_here)
    nodes({"CPU": 8.0}, {"CPU": 8.0, "GPU": gpus_there})
    job = recipe(checkpoint, pools="auto")
    assert build(job, "head:6379").model.dtype == dtype


@pytest.mark.parametrize(("gpus_here", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_pools_auto_on_a_ray_of_our_own_are_for_this_host(checkpoint, host, gpus_here, dtype):
    host(gpus_here)
    assert build(recipe(checkpoint, executor="ray", pools="auto")).model.dtype == dtype


def test_what_the_recipe_says_is_not_questioned(checkpoint, host):
    host(False)
    model = {"name": "llava-onevision-7b", "path": str(checkpoint)}
    job = recipe(checkpoint, executor="ray", pools=BOTH, model={**model, "device": "cpu"})
    assert devices(job) == ("float32", "cpu", "cpu")
    job = recipe(checkpoint, executor="ray", model={**model, "device": "cuda"})
    assert devices(job) == ("bfloat16", "cuda", "cuda")
    job = recipe(checkpoint, executor="ray", pools=BOTH, model={**model, "dtype": "float16"})
    assert devices(job) == ("float16", "cuda", "cuda")


def test_an_open_executor_becomes_the_loop_where_only_the_loop_would_use_the_gpu(checkpoint, host):
    host(True)
    choice = executor_of(recipe(checkpoint), None, 10**6)
    assert choice.executor == "local"
    assert "pools.compress.num_gpus" in choice.reason
    for job in (recipe(checkpoint, pools=BOTH), recipe(checkpoint, pools="auto")):
        assert executor_of(job, None, 10**6).executor == "ray"
    assert executor_of(recipe(checkpoint), "head:6379", 10**6).executor == "ray"
    host(False)
    assert executor_of(recipe(checkpoint), None, 10**6).executor == "ray"
