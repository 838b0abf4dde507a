"""What is decided before Ray starts; that it starts is for the tests that use it."""

from __future__ import annotations

import pytest
from fake_clock import FakeClock
from fresh_python import printed_by

from pipeline.clips import Pools
from pipeline.errors import ClusterError
from pipeline.executors.cluster import LOOK_EVERY_S, RoomWatch
from pipeline.resources.pools import ActorPool, preflight
from pipeline.settings import LOOP_UP_TO, choose


@pytest.mark.parametrize(("user", "expected"), [(None, "False"), ("1", "True")])
def test_ray_reports_no_usage_unless_the_user_asks(user, expected, monkeypatch):
    """A refused address is enough: the setting is made before anything is asked of Ray."""
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    if user is not None:
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", user)
    code = (
        "import contextlib, ray\n"
        "from ray._common.usage.usage_lib import usage_stats_enabled\n"
        "from pipeline.errors import ClusterError\n"
        "from pipeline.executors.cluster import connected\n"
        "with contextlib.suppress(ClusterError), connected('127.0.0.1:1'):\n"
        "    raise SystemExit('port 1 answers')\n"
        "print(usage_stats_enabled())"
    )
    assert printed_by(code) == expected


@pytest.mark.ray
def test_a_thread_that_outlives_the_job_starts_no_other_ray():
    code = (
        "import ray\n"
        "from pipeline.executors.cluster import connected\n"
        "with connected():\n"
        "    assert ray.is_initialized()\n"
        "try:\n"
        "    ray.put(1)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, ray.is_initialized())"
    )
    assert printed_by(code) == "RaySystemError False"


SEVERAL = Pools(answer=ActorPool(num_actors=2))


@pytest.mark.parametrize(
    ("wanted", "executor", "options"),
    [
        ("auto", "local", {"num_clips": LOOP_UP_TO}),
        ("auto", "ray", {"num_clips": LOOP_UP_TO + 1}),
        ("auto", "ray", {"num_clips": 1, "address": "auto"}),
        ("auto", "ray", {"num_clips": 1, "pools": SEVERAL}),
        ("auto", "ray", {"num_clips": None, "address": "auto"}),
        ("auto", "local", {"num_clips": 10**6, "profile": True}),
        ("auto", "local", {"num_clips": None, "address": "auto", "profile": True}),
        ("ray", "ray", {"num_clips": 1}),
        ("local", "local", {"num_clips": 10**6, "pools": SEVERAL}),
        ("auto", None, {"num_clips": None}),
    ],
)
def test_auto_takes_ray_where_it_repays_its_start(wanted, executor, options):
    assert getattr(choose(wanted, **options), "executor", None) == executor


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
