"""How long a job waits for a lost node."""

from __future__ import annotations

import pytest
from fake_clock import FakeClock

from pipeline.clips import Pools
from pipeline.errors import ClusterError
from pipeline.executors.cluster import LOOK_EVERY_S, RoomWatch
from pipeline.resources.pools import ActorPool, preflight

POOLS = Pools(answer=ActorPool(resources={"big": 1}))
WITH, WITHOUT = [{"CPU": 2.0}, {"CPU": 2.0, "big": 1.0}], [{"CPU": 2.0}]


@pytest.fixture
def cluster():
    """A clock, the nodes (to be changed), how often they were looked at, and the watch."""
    clock, nodes, looks = FakeClock(), list(WITH), []

    def look():
        looks.append(clock.monotonic())
        return nodes

    check = lambda found: preflight(POOLS, found, ["decode", "answer"])  # noqa: E731
    return clock, nodes, looks, RoomWatch(look, check, 60.0, clock)


def pass_time(clock, watch, seconds):
    for _ in range(int(seconds / LOOK_EVERY_S)):
        clock.sleep(LOOK_EVERY_S)
        watch()


def test_a_node_that_does_not_come_back_ends_the_job_in_one_line(cluster):
    clock, nodes, _, watch = cluster
    nodes[:] = WITHOUT
    with pytest.raises(ClusterError, match=r"lost_timeout_s = 60 s: .*pools\.answer") as error:
        pass_time(clock, watch, 300)
    assert 60 <= clock.monotonic() <= 60 + 2 * LOOK_EVERY_S
    assert "\n" not in str(error.value)


def test_a_node_that_comes_back_in_time_is_waited_for(cluster, caplog):
    clock, nodes, _, watch = cluster
    for _ in range(3):
        nodes[:] = WITHOUT
        pass_time(clock, watch, 50)
        nodes[:] = WITH
        pass_time(clock, watch, 50)
    lost = [record for record in caplog.records if "a node was lost" in record.message]
    assert len(lost) == 3


def test_a_job_that_gets_results_from_what_is_left_goes_on(cluster):
    clock, nodes, _, watch = cluster
    nodes[:] = WITHOUT
    for _ in range(20):
        pass_time(clock, watch, 40)
        watch.progressed()
    with pytest.raises(ClusterError):
        pass_time(clock, watch, 100)


def test_the_cluster_is_not_asked_all_the_time(cluster):
    clock, _, looks, watch = cluster
    for _ in range(1000):
        clock.sleep(0.02)
        watch()
    assert len(looks) == 20 / LOOK_EVERY_S - 1 or len(looks) == 20 / LOOK_EVERY_S
