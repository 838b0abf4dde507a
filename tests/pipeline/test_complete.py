"""Which errors are a store's, and what a job does when clip after clip meets one."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import pyarrow as pa
import pytest
from fake_clock import FakeClock

from pipeline.errors import ClusterError, StoreError
from pipeline.rows import Result
from pipeline.run import IN_A_ROW, complete
from pipeline.storage.objects import PAUSES_S, UnavailableError, insist, store_fault


def caused_by(cause):
    try:
        raise ValueError("could not write the token set") from cause
    except ValueError as error:
        return error


OF_THE_STORE = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    OSError(errno.EROFS, "Read-only file system"),
    OSError(errno.EFBIG, "File too large"),
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.ESTALE, "Stale file handle"),
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
    UnavailableError("read s3://bucket/x: tried 6 times without success"),
    StoreError("it did not come back"),
    caused_by(OSError(errno.ENOSPC, "No space left on device")),
]
OF_SOMETHING_ELSE = [
    FileNotFoundError(errno.ENOENT, "No such file or directory"),
    PermissionError(errno.EACCES, "Permission denied"),
    TimeoutError("clip.mp4: no result from the decoder within 120 s"),
    ClusterError("no Ray cluster at --address 10.0.0.1:6379"),
    ValueError("3 layers"),
    MemoryError(),
]


@pytest.mark.parametrize("error", OF_THE_STORE, ids=repr)
def test_a_fault_of_the_store_is_one_line_with_its_path(error):
    fault = store_fault(error, "s3://bucket/cache")
    assert fault.startswith("s3://bucket/cache: ")
    assert "\n" not in fault


@pytest.mark.parametrize("error", OF_SOMETHING_ELSE, ids=repr)
def test_other_errors_are_not(error):
    assert store_fault(error, "s3://bucket/cache") is None


@dataclass(frozen=True)
class FakePlan:
    """As much of a plan as is looked at."""

    clips: pa.Table

    @classmethod
    def of(cls, count):
        ids = [f"v{number}" for number in range(count)]
        return cls(pa.table({"benchmark": ["b"] * count, "video_id": ids}))


class Executor:
    """Yields a row per clip in order.

    Args:
        is_bad: Clip and number of the attempt (from 0) -> whether it meets a fault.
    """

    def __init__(self, is_bad):
        self.is_bad = is_bad
        self.attempts = []
        self.closed = 0

    def __call__(self, plan, settings):
        number, ran = len(self.attempts), []
        self.attempts.append(ran)
        try:
            for name in plan.clips["video_id"].to_pylist():
                ran.append(name)
                bad = self.is_bad(name, number)
                fault = "/data/cache: [Errno 28] No space left on device" if bad else None
                status = "encode_failed" if bad else "ok"
                yield Result(benchmark="b", video_id=name, status=status, store_fault=fault)
        finally:
            self.closed += 1


def run(executor, count, clock=None):
    """Status by clip, each once."""
    rows = list(complete(executor, FakePlan.of(count), None, clock or FakeClock()))
    found = {row.video_id: row.status for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("away_for", [1, 2, 3])
def test_a_store_that_comes_back_costs_waits_and_no_clip(away_for):
    """It dies after four clips."""
    executor = Executor(lambda name, attempt: attempt < away_for and int(name[1:]) >= 4)
    clock = FakeClock()
    assert set(run(executor, 50, clock).values()) == {"ok"}
    assert clock.slept_s == list(PAUSES_S[:away_for])
    assert len(executor.attempts[0]) == 4 + IN_A_ROW  # and not 7 s for each of 50 clips
    assert executor.closed == len(executor.attempts) == away_for + 1


@pytest.mark.parametrize("count", [50, 2, 1])
def test_a_store_that_stays_away_stops_the_job_and_no_clip_fails(count):
    executor, seen = Executor(lambda name, attempt: name != "v0" or count < 50), []
    clock = FakeClock()
    with pytest.raises(StoreError, match=r"^/data/cache: .*No space left.*within 60 s") as error:
        seen.extend(complete(executor, FakePlan.of(count), None, clock))
    assert {row.status for row in seen} <= {"ok"}
    assert clock.slept_s == list(PAUSES_S)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "bad",
    [{"v3"}, {"v0"}, {"v9"}, {"v0", "v1", "v2"}, {"v8", "v9"}, {"v1", "v4", "v5", "v9"}],
)
def test_clips_that_always_meet_it_while_others_succeed_fail_alone(bad):
    """Such as token sets that are larger than a file may be here."""
    found = run(Executor(lambda name, attempt: name in bad), 10)
    failed = {name for name, status in found.items() if status != "ok"}
    assert failed == bad
    assert len(found) == 10


def test_the_last_three_cannot_be_told_from_a_store_that_died_before_them():
    seen, executor = [], Executor(lambda name, attempt: name in {"v7", "v8", "v9"})
    with pytest.raises(StoreError):
        seen.extend(complete(executor, FakePlan.of(10), None, FakeClock()))
    assert [row.status for row in seen] == ["ok"] * 7


def test_a_store_that_is_dead_before_the_later_attempts_begin_fails_no_clip():
    """As an object store that goes away: the caches cannot even be opened again."""
    first = Executor(lambda name, attempt: name == "v4")

    def run_plan(plan, settings):
        if first.attempts:
            raise UnavailableError("Could not connect to the endpoint URL")
        for row in first(plan, settings):
            yield row
            if row.store_fault:
                return

    seen = []
    with pytest.raises(StoreError, match="Could not connect"):
        seen.extend(complete(run_plan, FakePlan.of(50), None, FakeClock()))
    assert [row.video_id for row in seen] == ["v0", "v1", "v2", "v3"]


def test_clips_that_an_executor_keeps_to_itself_are_not_waited_for():
    clock = FakeClock()
    assert list(complete(lambda plan, settings: iter(()), FakePlan.of(5), None, clock)) == []
    assert clock.slept_s == []


@pytest.mark.parametrize("away_for", [0, 1, 3])
def test_what_the_driver_writes_is_insisted_on(away_for):
    left, clock = [OSError(errno.ENOSPC, "No space left on device")] * away_for, FakeClock()

    def write():
        if left:
            raise left.pop()
        return "written"

    assert insist(write, "/data/run", clock) == "written"
    assert clock.slept_s == list(PAUSES_S[:away_for])
