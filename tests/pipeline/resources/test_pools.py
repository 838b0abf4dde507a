from __future__ import annotations

import pytest
import torch

from pipeline.clips import Pools
from pipeline.resources.pools import (
    ActorPool,
    PoolError,
    TaskPool,
    doubts,
    placed,
    preflight,
    room_for,
)
from pipeline.settings import Settings
from tango_core.models import describe_model

ALL = ("decode", "compress", "answer")
LAPTOP = [{"CPU": 2.0}]


GPU_NODE = {"CPU": 4.0, "GPU": 1.0}
ONE_CPU = ActorPool(num_cpus=1)
FITS = {
    "a laptop without a GPU": (Pools(), LAPTOP, ALL),
    "a CPU per stage": (Pools(compress=ONE_CPU, answer=ONE_CPU), [{"CPU": 3.0}], ALL),
    "the start of a pool that may grow": (
        Pools(answer=ActorPool((1, 8), num_gpus=1)), [GPU_NODE], ALL,
    ),
    "tasks beside actors on two nodes": (
        Pools(TaskPool(1), ActorPool(num_cpus=3), ActorPool(num_cpus=3)), [{"CPU": 4.0}] * 2, ALL,
    ),
    "a pool that is not used": (Pools(answer=ActorPool(num_gpus=8)), LAPTOP, ALL[:2]),
}  # fmt: skip
REFUSED = {
    "no room for 1 decode .*1 CPUs": (Pools(compress=ONE_CPU, answer=ONE_CPU), LAPTOP),
    r"no room for 3 answer.*lower pools\.answer": (
        Pools(answer=ActorPool(num_gpus=1, num_actors=3)), [{"CPU": 8.0, "GPU": 2.0}],
    ),
    r"no room for 1 compress.*pools\.compress\.num_gpus": (
        Pools(compress=ActorPool(num_gpus=2)), [GPU_NODE] * 2,
    ),
    "no room for 1 decode .*2 CPUs": (
        Pools(TaskPool(2), ActorPool(num_cpus=3), ActorPool(num_cpus=3)), [{"CPU": 4.0}] * 2,
    ),
    "no room for 2 answer": (Pools(answer=ActorPool((2, 8), num_gpus=1)), [GPU_NODE]),
    "no room for . ": (
        Pools(compress=ActorPool(num_gpus=0.6, num_actors=2), answer=ActorPool(num_gpus=0.6)),
        [GPU_NODE] * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FITS)
def test_pools_that_fit(case):
    preflight(*FITS[case])


@pytest.mark.parametrize("message", REFUSED)
def test_pools_that_can_never_be_scheduled(message):
    with pytest.raises(PoolError, match=message):
        preflight(*REFUSED[message], ALL)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ActorPool(num_actors=0), "num_actors must be 1 or larger"),
        (lambda: ActorPool(num_actors=(0, 4)), "num_actors must be 1 or larger"),
        (lambda: ActorPool(num_actors=(4, 2)), r"must not decrease, got \[4, 2\]"),
        (lambda: ActorPool(num_gpus=-1), "must be 0 or larger"),
        (lambda: ActorPool(num_cpus=float("nan")), "must be 0 or larger"),
        (lambda: ActorPool(num_gpus=1.5), "must be whole"),
        (lambda: TaskPool(num_cpus=0), "above 0"),
    ],
)
def test_senseless_pools_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


STAGES = ("decode", "compress", "answer")
CPU_NODE, FOUR_GPUS = {"CPU": 8.0}, {"CPU": 8.0, "GPU": 4.0}
ON_GPUS = Pools(compress=ActorPool(num_gpus=0.5), answer=ActorPool(num_gpus=1))


@pytest.mark.parametrize(
    ("asked", "num_gpus", "device"),
    [
        ("auto", 0, "cpu"),
        ("auto", 0.25, "cuda"),
        ("auto", 1, "cuda"),
        ("cpu", 1, "cpu"),
        ("cuda", 0, "cuda"),
    ],
)
def test_the_recipe_s_wish_counts_before_what_is_reserved(asked, num_gpus, device):
    settings = Settings("ray", pools=Pools(compress=ActorPool(num_gpus=num_gpus)), device=asked)
    assert placed(describe_model("tiny"), settings, "compress").device == device


@pytest.mark.parametrize("executor", ["ray", "local"])
def test_several_gpus_of_the_answer_pool_share_the_layers(executor):
    pools = Pools(compress=ActorPool(num_gpus=2), answer=ActorPool(num_gpus=2))
    settings = Settings(executor, pools=pools)
    model = describe_model("tiny", device="cuda")
    assert placed(model, settings, "answer").device == "cuda:0,cuda:1"
    assert placed(model, settings, "compress").device == "cuda", "an encoder fits on one"
    on_cpu = describe_model("tiny", device="cpu")
    settings = Settings(executor, pools=pools, device="cpu")
    assert placed(on_cpu, settings, "answer").device == "cpu"


@pytest.mark.parametrize(
    ("asked", "pools", "nodes"),
    [
        ("auto", Pools(), [CPU_NODE]),
        ("cpu", Pools(), [FOUR_GPUS]),
        ("auto", ON_GPUS, [FOUR_GPUS]),
        ("cuda", ON_GPUS, [FOUR_GPUS]),
    ],
)
def test_a_job_that_uses_what_it_reserves_raises_no_doubt(asked, pools, nodes):
    assert list(doubts(asked, pools, nodes, STAGES)) == []


def test_gpus_that_nobody_reserves_are_named_with_the_setting():
    lines = list(doubts("auto", Pools(), [CPU_NODE, FOUR_GPUS], STAGES))
    assert lines == [
        "pools.compress.num_gpus is 0: the vision encoder runs on the CPU, though the cluster has "
        "4 GPUs; set pools.compress.num_gpus above 0, or pools to auto",
        "pools.answer.num_gpus is 0: the language model runs on the CPU, though the cluster has "
        "4 GPUs; set pools.answer.num_gpus above 0, or pools to auto",
    ]
    assert len(list(doubts("auto", Pools(), [FOUR_GPUS], STAGES[:2]))) == 1, "of its own stages"


@pytest.fixture
def limits(monkeypatch):
    """Limits that were set on two GPUs of 20 GiB."""
    set_to = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 20 * 2**30))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *given: set_to.append(given)
    )
    return set_to


@pytest.mark.parametrize(("num_gpus", "share"), [(0.5, 0.475), (0.25, 0.225), (1, None), (0, None)])
def test_an_actor_keeps_to_the_share_that_it_reserves(limits, num_gpus, share):
    with room_for("compress", ActorPool(num_gpus=num_gpus), describe_model("tiny", device="cuda")):
        pass
    assert limits == ([] if share is None else [(pytest.approx(share), None)])


def test_weights_that_do_not_fit_are_one_line_with_the_setting(limits):
    def load():
        with room_for("answer", ActorPool(num_gpus=0.5), describe_model("tiny", device="cuda")):
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB.")

    named = r"^pools\.answer\.num_gpus is 0\.5, .* does not fit .*; raise pools\.answer\.num_gpus"
    with pytest.raises(PoolError, match=named) as error:
        load()
    assert "\n" not in str(error.value)
    assert error.value.__suppress_context__, "Ray would show its line instead"
