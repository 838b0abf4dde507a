"""Time and files come in as parameters wherever a fault in them is to be simulated."""

from __future__ import annotations

import threading
import time

import pytest

from pipeline.runtime.background import is_busy, iterate, within

# They ask other machines, look at source videos, installed software or the environment.
# Processes, signals and the terminal, and times that are shown while a job runs: no result and no
# file of a run depends on them.
# Work in a directory of their own that is removed again.


def wait_until_idle():
    deadline = time.monotonic() + 120
    while is_busy():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_closes_the_iterator_and_waits_for_its_end():
    closed = threading.Event()

    def numbers():
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    items = iterate(numbers)
    next(items)
    items.close()
    assert closed.is_set()


@pytest.mark.parametrize("good", [0, 2])
def test_an_error_comes_through(good):
    def numbers():
        yield from range(good)
        raise ValueError("no more")

    seen = []
    with pytest.raises(ValueError, match="no more"):
        seen.extend(iterate(numbers))
    items = iterate(numbers)
    assert [next(items) for _ in range(good)] == list(range(good))
    items.close()


def test_an_iterator_that_hangs_is_left_to_itself_if_the_watch_says_so():
    end, hangs, seen = threading.Event(), threading.Event(), []

    def numbers():
        yield 1
        hangs.set()
        end.wait(120)

    def watch():
        if hangs.is_set():
            raise TimeoutError("too long")

    with pytest.raises(TimeoutError, match="too long"):
        seen.extend(iterate(numbers, watch))
    assert seen == [1]
    assert is_busy()
    end.set()
    wait_until_idle()


def test_work_that_takes_too_long_is_a_timeout():
    end = threading.Event()
    with pytest.raises(TimeoutError):
        within(0.1, lambda: end.wait(120))
    end.set()
    wait_until_idle()
