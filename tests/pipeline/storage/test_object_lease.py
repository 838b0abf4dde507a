"""One driver per run in an object store: by conditional PUTs, with no clock of another machine."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import suppress
from datetime import timedelta

import pytest
from fake_clock import FakeClock
from lease_races import taken_at_once
from s3_server import times

from pipeline.storage import Storage
from pipeline.storage.leases import (
    EXPIRES_S,
    LEASE_FILE,
    FileLease,
    LeaseError,
    ObjectLease,
    lease_of,
)
from pipeline.storage.objects import ObjectStore


@pytest.fixture
def run(server, bucket, patience):
    return Storage(ObjectStore("s3", patience), f"{bucket}/runs/one")


@pytest.fixture
def in_memory():
    """A store that does not tell the time."""
    return Storage(ObjectStore("memory"), f"leases/{uuid.uuid4().hex}")


def pretend(storage, **changes):
    """Another machine holds the lease."""
    holder = json.loads(storage.read(LEASE_FILE))
    storage.write(LEASE_FILE, json.dumps(holder | changes).encode())


ELSEWHERE = {"machine": "another", "host": "node7", "pid": 2**22 + 1}


def test_where_a_run_is_decides_its_lease(run, tmp_path):
    assert isinstance(lease_of(run), ObjectLease)
    assert isinstance(lease_of(Storage.at(tmp_path)), FileLease)
    with pytest.raises(ValueError, match="zip://x: two drivers could not be told apart"):
        lease_of(Storage(ObjectStore("zip"), "x"))


def test_a_second_driver_is_refused_whatever_its_clock_says(run):
    lease_of(run).take()
    pretend(run, **ELSEWHERE)
    late = FakeClock()
    late.passed_s = timedelta(days=400).total_seconds()
    with pytest.raises(LeaseError, match=r"the driver on host node7.*--steal") as refused:
        ObjectLease(run, late).take()
    assert "\n" not in str(refused.value)


def test_a_lease_that_is_given_back_is_free(run):
    first = lease_of(run)
    first.take()
    first.renew()
    first.release()
    lease_of(run).take()


def test_a_stolen_lease_is_lost_and_stays_with_the_thief(run):
    first, thief = lease_of(run), lease_of(run)
    first.take()
    thief.take(steal=True)
    with pytest.raises(LeaseError, match="was taken over by the driver on host"):
        first.renew()
    first.release()
    thief.renew()
    with pytest.raises(LeaseError):
        lease_of(run).take()


def test_of_many_who_ask_at_once_one_gets_it(run):
    leases = [lease_of(run) for _ in range(8)]
    assert len(taken_at_once(leases)) == 1


def test_a_lost_answer_loses_no_lease(run, server):
    lease = lease_of(run)
    with server.with_rule(times(1, "lost answer", "PUT")):
        lease.take()
    with server.with_rule(times(1, "lost answer", "PUT")):
        lease.renew()
    # Every answer to one renewal is lost: the driver hears of a failure, the store has written.
    with server.with_rule(times(99, "lost answer", "PUT")), suppress(OSError):
        lease.renew()
    lease.renew()
    with pytest.raises(LeaseError):
        lease_of(run).take()


def test_two_threads_of_one_driver_may_renew_at_once(run):
    lease = lease_of(run)
    lease.take()
    errors = []

    def renew():
        try:
            for _ in range(5):
                lease.renew()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=renew) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_an_expired_lease_is_free_by_the_clock_of_the_store(run, monkeypatch):
    lease_of(run).take()
    pretend(run, **ELSEWHERE)
    monkeypatch.setattr(ObjectStore, "age_s", lambda self, path: EXPIRES_S - 1)
    with pytest.raises(LeaseError, match="ends by itself in 1 s"):
        lease_of(run).take()
    monkeypatch.setattr(ObjectStore, "age_s", lambda self, path: EXPIRES_S + 1)
    lease_of(run).take()


def test_the_store_tells_how_old_an_object_is(run):
    run.write("a", b"x")
    assert 0 <= run.store.age_s(run.path("a")) < 600


def test_where_the_store_has_no_clock_one_looks_on(in_memory):
    clock = FakeClock()
    first = ObjectLease(in_memory, clock)
    first.take()
    pretend(in_memory, **ELSEWHERE)

    class Renewing(FakeClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if self.passed_s > 20:
                pretend(in_memory, renewed_at=str(self.passed_s))

    with pytest.raises(LeaseError, match="node7"):
        ObjectLease(in_memory, Renewing()).take()
    silent = FakeClock()
    ObjectLease(in_memory, silent).take()
    assert silent.passed_s >= EXPIRES_S


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"pid": 1}'])
def test_a_damaged_lease_holds_nobody_up(in_memory, content):
    in_memory.write(LEASE_FILE, content)
    lease = ObjectLease(in_memory)
    lease.take()
    lease.renew()
