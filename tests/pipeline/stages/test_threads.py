"""Jobs done by another thread: in order, bounded, and over when they are not wanted any more."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from pipeline.stages.threads import done_ahead


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_results_come_in_order_and_errors_in_their_place(most):
    def work(job):
        if job % 3 == 2:
            raise ValueError(f"no {job}")
        return job * 10

    found = [
        (job, str(got.exception() or got.result()))
        for job, got in done_ahead(range(7), work, most, lambda job: most)
    ]
    expected = [str(n * 10) if n % 3 != 2 else f"no {n}" for n in range(7)]
    assert found == list(enumerate(expected))


def test_so_many_are_done_ahead_and_not_more():
    taken, done = [], []

    def jobs():
        for number in range(20):
            taken.append(number)
            yield number

    with closing(done_ahead(jobs(), done.append, 3, lambda job: 3)) as coming:
        next(coming)
        wait_until(lambda: len(done) == 4)
        time.sleep(0.05)
        assert (taken, done) == ([0, 1, 2, 3], [0, 1, 2, 3])
        next(coming)
        wait_until(lambda: len(done) == 5)
        assert taken == [0, 1, 2, 3, 4]


def test_a_job_that_leaves_less_room_is_ahead_of_fewer():
    taken, ahead = [], []

    def jobs():
        for number in range(8):
            taken.append(number)
            yield number

    for job, _ in done_ahead(jobs(), lambda job: job, 4, lambda job: 1 if job > 3 else 4):
        ahead.append(len(taken) - 1 - job)
    assert ahead == [4, 3, 2, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("how", ["closed", "jobs fail", "never begun"])
def test_the_thread_has_nothing_to_do_afterwards(how):
    running, release = threading.Event(), threading.Event()

    def jobs():
        yield from range(3)
        if how == "jobs fail":
            raise RuntimeError("no more clips")
        yield from range(3, 50)

    def work(job):
        if job == 2:
            running.set()
            release.wait(60)
        return job

    coming = done_ahead(jobs(), work, 2, lambda job: 2)
    if how != "never begun":
        job, got = next(coming)
        assert (job, got.result()) == (0, 0)
        assert running.wait(60)
        release.set()
    if how == "jobs fail":
        with pytest.raises(RuntimeError, match="no more clips"):
            list(coming)
    coming.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("tango-ahead")]
