"""The numbers of a job under way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from live_jobs import TANGO, result

from jobs.tracking.numbers import EACH_NODE_EVERY_S, MAX_NODES, RunningNumbers
from pipeline.metrics import JobBoard, StageCount
from pipeline.resources.node_usage import Reading
from pipeline.runtime import process
from tango_core.metrics import clustered_accuracy

CELL = ("shapes", TANGO.name)


def board_of(slots=1.0, **stages):
    board = JobBoard()
    board.expected = {"decode": 10, "answer": 12}
    board.slots = {"decode": slots}
    board.add({name: StageCount(*counts) for name, counts in stages.items()})
    return board


def test_accuracy_so_far_has_the_interval_of_the_results():
    numbers = RunningNumbers(JobBoard(), [CELL])
    outcomes = [True, False, True, True, True, False]
    for right in outcomes:
        numbers.add(result(right), num_caches=1)
    metrics = numbers.metrics(2.0)
    whole = clustered_accuracy(outcomes, range(6))
    assert metrics["accuracy"] == metrics["live/accuracy"] == pytest.approx(whole.value)
    assert metrics["live/accuracy_low"] == pytest.approx(whole.low)
    assert metrics["live/accuracy_high"] == pytest.approx(whole.high)
    assert not [name for name in metrics if name.startswith("accuracy/")], "there is one cell"


def test_rates_are_those_since_the_last_sample():
    numbers = RunningNumbers(JobBoard(), [CELL])
    for _ in range(4):
        numbers.add(result(), num_caches=1)
    assert numbers.metrics(2.0)["live/clips_per_s"] == 2
    numbers.add(result(), num_caches=1)
    later = numbers.metrics(6.0)
    assert (later["live/clips"], later["live/clips_per_s"]) == (5, 0.25)
    assert later["live/tokens_per_s"] == 100 / 4


def test_failures_are_counted_by_reason_and_are_wrong():
    numbers = RunningNumbers(JobBoard(), [CELL])
    lost = result(False, status="decode_failed")
    unanswered = result()
    unanswered.answers[0] = replace(unanswered.answers[0], status="answer_failed")
    for row in (lost, lost, unanswered, result()):
        numbers.add(row, num_caches=2)
    metrics = numbers.metrics(1.0)
    assert metrics["failures/decode_failed"] == 2
    assert metrics["failures/answer_failed"] == 1
    assert metrics["live/failed_clips"] == 3
    assert metrics["accuracy"] == 0.25
    assert (metrics["live/cache_hits"], metrics["live/token_sets_computed"]) == (2, 2)


def test_every_cell_of_a_sweep_has_its_accuracy():
    numbers = RunningNumbers(JobBoard(), [CELL, ("shapes", "full")])
    row = result(False)
    row.answers.append(replace(row.answers[0], cell="full", correct=True))
    numbers.add(row, num_caches=1)
    metrics = numbers.metrics(1.0)
    assert (metrics["accuracy/full"], metrics["accuracy/tango r_0.1"]) == (1, 0)
    assert metrics["accuracy"] == 0.5


def test_stages_have_queues_and_busy_shares():
    numbers = RunningNumbers(board_of(decode=(7, 6, 1, 3.0), answer=(1, 0, 0, 0.0)), [CELL])
    metrics = numbers.metrics(4.0)
    assert metrics["stage_clips/decode"] == 6
    assert metrics["queue/decode"] == 3, "of ten, seven were taken"
    assert metrics["queue/answer"] == 7, "six were decoded, two are cached, one was taken"
    assert metrics["busy_share/decode"] == 0.75
    assert metrics["busy_share/answer"] == 1, "it is at work on its first clip"
    assert numbers.metrics(8.0)["busy_share/decode"] == 1, "one clip is under way"


def test_many_workers_share_the_work():
    numbers = RunningNumbers(board_of(slots=4.0, decode=(6, 6, 0, 8.0)), [CELL])
    assert numbers.metrics(4.0)["busy_share/decode"] == 0.5


def node_metrics(numbers, now_s):
    return {name: one for name, one in numbers.metrics(now_s).items() if name.startswith("node_")}


def test_gpus_of_other_nodes_are_shown_together_and_by_node():
    board = JobBoard()
    board.readings = [
        Reading("far", "0", "gpu", 90.0),
        Reading("far", "1", "gpu", 60.0),
        Reading("near", "0", "gpu", 30.0),
        Reading("near", "", "cpu", 5.0),
    ]
    numbers = RunningNumbers(board, [])
    together = {"node_gpu_percent/mean": 60, "node_gpu_percent/max": 90}
    together |= {"node_cpu_percent/mean": 5, "node_cpu_percent/max": 5}
    nodes = {"node_gpu_percent/far": 75, "node_gpu_percent/near": 30, "node_cpu_percent/near": 5}
    assert node_metrics(numbers, 10.0) == together | nodes
    assert node_metrics(numbers, 20.0) == together, "single nodes come more rarely"
    assert node_metrics(numbers, 10.0 + EACH_NODE_EVERY_S) == together | nodes


def test_names_of_nodes_do_not_grow_with_a_cluster():
    board, seen = JobBoard(), set()
    numbers = RunningNumbers(board, [])
    for hour in range(10):
        hosts = [f"node-{hour}-{number}" for number in range(5)]
        board.readings = [Reading(host, "", "memory", 50.0) for host in hosts]
        seen |= node_metrics(numbers, 3600.0 * hour).keys()
    assert len(seen) == MAX_NODES + len(("mean", "max"))


def test_the_drivers_own_node_alone_is_left_to_the_system_metrics():
    board = JobBoard()
    board.readings = [Reading(process.host(), "", "cpu", 50.0)]
    assert node_metrics(RunningNumbers(board, []), 1.0) == {}
