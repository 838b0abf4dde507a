"""A clip that kills its worker again and again is given up, others are not touched by that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.clips import Clip
from pipeline.errors import DeviceError
from pipeline.executors.workers import MAX_ATTEMPTS, AttemptLedger, BoundedAttempts
from pipeline.metrics import stream_of

ROW = Clip(benchmark="b", video_id="v", path="")


class WorkerDied(BaseException):
    """In the place of a process that ends: nothing after it is executed."""


def bounded(stage, failure, ledger, where=""):
    """One row through a stage under a ledger."""
    attempts = BoundedAttempts(stream_of(stage), failure, ledger, where)
    return lambda row: next(iter(attempts([row])))


def deadly(row):
    if row.status == "ok":
        raise WorkerDied
    return row


def test_a_clip_that_kills_its_worker_becomes_a_failed_row():
    ledger = AttemptLedger()
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(WorkerDied):
            bounded(deadly, "encode_failed", ledger)(ROW)
    row = bounded(deadly, "encode_failed", ledger)(ROW)
    assert row.status == "encode_failed"
    assert row.error == "the worker process died 3 times on this clip"


def test_a_clip_that_loses_the_gpu_three_times_says_why():
    def poisoned(row):
        if row.status == "ok":
            raise DeviceError("CUDA error: device-side assert triggered")
        return row

    ledger = AttemptLedger()
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(DeviceError):
            bounded(poisoned, "encode_failed", ledger, "on node7, GPU 3")(ROW)
    row = bounded(poisoned, "encode_failed", ledger)(ROW)
    assert row.status == "encode_failed"
    assert row.error == (
        "the worker process died 3 times on this clip; the last time because of CUDA error: "
        "device-side assert triggered (on node7, GPU 3)"
    )
    assert ledger.why("encode_failed|b|v") is None, "an attempt that came back is forgotten"


def test_a_clip_that_kills_its_worker_costs_its_neighbours_nothing():
    """Several clips are with the stage when its process dies; Ray repeats all of them."""
    rows = [replace(ROW, video_id=name) for name in "abcdef"]

    class Batches:
        def stream(self, rows):
            inside = list(rows)
            if any(row.video_id == "c" and row.status == "ok" for row in inside):
                raise WorkerDied
            yield from inside

        def __call__(self, row):
            raise AssertionError

    ledger, died = AttemptLedger(), 0
    while True:
        attempt = BoundedAttempts(stream_of(Batches()), "answer_failed", ledger)
        try:
            done = {row.video_id: row.status for row in attempt(rows)}
            break
        except WorkerDied:
            died += 1
            assert died <= MAX_ATTEMPTS
    assert died == MAX_ATTEMPTS
    assert done == {**dict.fromkeys("abdef", "ok"), "c": "answer_failed"}
