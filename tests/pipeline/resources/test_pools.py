from __future__ import annotations

import pytest

from pipeline.clips import Pools
from pipeline.resources.pools import ActorPool, PoolError, TaskPool, preflight

ALL = ("decode", "compress", "answer")
LAPTOP = [{"CPU": 2.0}]


def test_the_default_pools_fit_a_laptop_without_a_gpu():
    preflight(Pools(), LAPTOP, ALL)


def test_actors_that_leave_no_cpu_for_decoding_are_refused():
    pools = Pools(compress=ActorPool(num_cpus=1), answer=ActorPool(num_cpus=1))
    with pytest.raises(PoolError, match=r"no node .*1 CPUs of one decode task; lower pools"):
        preflight(pools, LAPTOP, ALL)
    preflight(pools, [{"CPU": 3.0}], ALL)


def test_gpus_that_the_cluster_does_not_have_are_refused():
    pools = Pools(answer=ActorPool(num_gpus=1, num_actors=3))
    with pytest.raises(PoolError, match=r"no room for 3 answer actor.* lower pools\.answer"):
        preflight(pools, [{"CPU": 8.0, "GPU": 2.0}], ALL)


def test_an_actor_must_fit_one_node_and_not_the_sum_of_nodes():
    pools = Pools(compress=ActorPool(num_gpus=2))
    with pytest.raises(PoolError, match=r"no room for 1 compress actor.*pools\.compress\.num_gpus"):
        preflight(pools, [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}], ALL)


def test_a_decode_task_must_fit_beside_the_actors_on_one_node():
    two_nodes = [{"CPU": 4.0}, {"CPU": 4.0}]
    pools = Pools(TaskPool(2), ActorPool(num_cpus=3), ActorPool(num_cpus=3))
    with pytest.raises(PoolError, match="2 CPUs of one decode task"):
        preflight(pools, two_nodes, ALL)
    preflight(Pools(TaskPool(1), ActorPool(num_cpus=3), ActorPool(num_cpus=3)), two_nodes, ALL)


def test_of_a_pool_that_may_grow_the_start_must_fit():
    preflight(Pools(answer=ActorPool((1, 8), num_gpus=1)), [{"CPU": 4.0, "GPU": 1.0}], ALL)
    with pytest.raises(PoolError, match="no room for 2 answer"):
        preflight(Pools(answer=ActorPool((2, 8), num_gpus=1)), [{"CPU": 4.0, "GPU": 1.0}], ALL)


def test_fractions_of_gpus_do_not_add_up_across_nodes():
    pools = Pools(compress=ActorPool(num_gpus=0.6, num_actors=2), answer=ActorPool(num_gpus=0.6))
    with pytest.raises(PoolError, match="no room"):
        preflight(pools, [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}], ALL)


def test_a_pool_that_is_not_used_is_not_counted():
    preflight(Pools(answer=ActorPool(num_gpus=8)), LAPTOP, ("decode", "compress"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ActorPool(num_actors=0), "num_actors must be 1 or larger"),
        (lambda: ActorPool(num_actors=(0, 4)), "num_actors must be 1 or larger"),
        (lambda: ActorPool(num_actors=(4, 2)), r"must be \[least, most\] with .*, got \[4, 2\]"),
        (lambda: ActorPool(num_gpus=-1), "must be 0 or larger"),
        (lambda: ActorPool(num_cpus=float("nan")), "must be 0 or larger"),
        (lambda: ActorPool(num_gpus=1.5), "must be a whole number"),
        (lambda: TaskPool(num_cpus=0), "above 0"),
    ],
)
def test_senseless_pools_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
