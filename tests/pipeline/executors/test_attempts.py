"""A clip that kills its worker again and again is given up, others are not touched by that."""

from __future__ import annotations

import pytest

from pipeline.errors import DeviceError
from pipeline.executors.attempts import MAX_ATTEMPTS, AttemptLedger, BoundedAttempts

ROW = {"benchmark": "b", "video_id": "v", "status": "ok", "error": None}


class WorkerDied(BaseException):
    """In the place of a process that ends: nothing after it is executed."""


def passed_on(row):
    return {**row, "done": True}


def deadly(row):
    if row["status"] == "ok":
        raise WorkerDied
    return row


def test_a_clip_that_comes_back_may_be_tried_any_number_of_times():
    run = BoundedAttempts(passed_on, "encode_failed", AttemptLedger())
    for _ in range(3 * MAX_ATTEMPTS):
        assert run(ROW) == {**ROW, "done": True}


def test_a_clip_that_kills_its_worker_becomes_a_failed_row():
    ledger = AttemptLedger()
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(WorkerDied):
            BoundedAttempts(deadly, "encode_failed", ledger)(ROW)
    row = BoundedAttempts(deadly, "encode_failed", ledger)(ROW)
    assert row["status"] == "encode_failed"
    assert row["error"] == "the worker process died 3 times on this clip"


def test_stages_and_clips_are_counted_apart():
    ledger = AttemptLedger()
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(WorkerDied):
            BoundedAttempts(deadly, "encode_failed", ledger)(ROW)
    assert BoundedAttempts(passed_on, "answer_failed", ledger)(ROW)["status"] == "ok"
    other = {**ROW, "video_id": "w"}
    assert BoundedAttempts(passed_on, "encode_failed", ledger)(other)["status"] == "ok"


def test_a_clip_that_loses_the_gpu_three_times_says_why():
    def poisoned(row):
        if row["status"] == "ok":
            raise DeviceError("CUDA error: device-side assert triggered")
        return row

    ledger = AttemptLedger()
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(DeviceError):
            BoundedAttempts(poisoned, "encode_failed", ledger, "on node7, GPU 3")(ROW)
    row = BoundedAttempts(poisoned, "encode_failed", ledger)(ROW)
    assert row["status"] == "encode_failed"
    assert row["error"] == (
        "the worker process died 3 times on this clip; the last time because of CUDA error: "
        "device-side assert triggered (on node7, GPU 3)"
    )
    assert ledger.why("encode_failed|b|v") is None, "an attempt that came back is forgotten"
