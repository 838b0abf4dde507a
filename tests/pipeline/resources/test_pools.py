from __future__ import annotations

import pytest

from pipeline.clips import Pools
from pipeline.resources.pools import ActorPool, PoolError, TaskPool, preflight

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
