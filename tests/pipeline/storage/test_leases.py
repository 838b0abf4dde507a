"""Who may write to a run: one driver, the living one, on a disk and in a store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest
from fake_clock import FakeClock

from pipeline.storage import Storage
from pipeline.storage.leases import EXPIRES_S, RELEASED, Lease, LeaseError, held
from pipeline.storage.objects import ObjectStore


def taken_at_once(leases: Sequence[Lease]) -> list[Lease]:
    """Take several leases of one run concurrently; returns those that succeeded."""
    begin, taken = threading.Barrier(len(leases)), []

    def take(lease: Lease) -> None:
        begin.wait()
        try:
            lease.take()
        except LeaseError:
            return
        taken.append(lease)

    threads = [threading.Thread(target=take, args=[lease]) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def in_store(server, bucket, patience):
    return Storage(ObjectStore("s3", patience), f"{bucket}/runs/one")


@pytest.fixture(params=["disk", "store"])
def run(request, tmp_path):
    return Storage.at(tmp_path) if request.param == "disk" else request.getfixturevalue("in_store")


@pytest.fixture
def lease_of(run, clock):
    """`lease_of()` makes the lease of one more driver of the run."""
    return lambda: Lease(run, clock)


def contents(run):
    return [run.read(file.name) for file in run.files()]


def pretend(run, **changes):
    """Change what the lease file says of its driver."""
    (name,) = (file.name for file in run.files())
    run.write(name, json.dumps(json.loads(run.read(name)) | changes).encode())


ELSEWHERE = {"machine": "another", "host": "node7", "pid": 2**22 + 1}


def is_lost(lease):
    """Whether a renewal has found that another driver has the run."""
    try:
        lease.raise_if_lost()
    except LeaseError:
        return True
    return False


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_store_without_conditional_writes_is_refused():
    with pytest.raises(ValueError, match="zip://x: runs need a store with conditional"):
        Lease(Storage(ObjectStore("zip"), "x"))


def test_a_second_driver_is_refused_in_one_line_with_host_pid_and_age(tmp_path, clock):
    Lease(Storage.at(tmp_path), clock).take()
    clock.sleep(42)
    with pytest.raises(LeaseError) as refused:
        Lease(Storage.at(tmp_path), clock).take()
    host = os.uname().nodename
    text = str(refused.value)
    assert f"host {host}, pid {os.getpid()} (since 42 s, last seen 42 s ago)" in text
    assert "--steal" in text
    assert "\n" not in text


def test_a_lease_that_is_given_back_says_so_and_is_free(lease_of, run):
    for _ in range(3):
        lease = lease_of()
        lease.take()
        lease.renew()
        assert lease.living()
        lease.release()
        assert lease.living() is None
        assert contents(run) == [RELEASED]


def test_in_a_store_the_clock_of_the_store_counts_and_no_other(in_store, monkeypatch):
    Lease(in_store).take()
    pretend(in_store, **ELSEWHERE)
    assert 0 <= in_store.store.age_s(in_store.path(in_store.files()[0].name)) < 600
    late = FakeClock()
    late.passed_s = 400 * 86_400.0
    with pytest.raises(LeaseError, match=r"the driver on host node7.*--steal"):
        Lease(in_store, late).take()
    monkeypatch.setattr(ObjectStore, "age_s", lambda self, path: EXPIRES_S - 1)
    with pytest.raises(LeaseError, match="ends by itself in 1 s"):
        Lease(in_store).take()
    monkeypatch.setattr(ObjectStore, "age_s", lambda self, path: EXPIRES_S + 1)
    Lease(in_store).take()


def test_a_dead_driver_of_this_machine_is_no_driver(lease_of, run):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lease_of().take()
    pretend(run, pid=dead.pid)
    lease_of().take()


def test_a_stolen_lease_is_lost_and_not_given_back_by_the_robbed(lease_of, caplog):
    first, thief = lease_of(), lease_of()
    first.take()
    thief.take(steal=True)
    assert f"the lease of the driver on host {os.uname().nodename}" in caplog.text
    with pytest.raises(LeaseError):
        first.renew()
    first.release()
    thief.renew()
    with pytest.raises(LeaseError):
        lease_of().take()


def test_a_robbed_driver_that_stood_still_in_a_renewal_notices_it_after_the_thief_has_ended(
    lease_of, monkeypatch
):
    robbed, thief = lease_of(), lease_of()
    robbed.take()
    write = Storage.write

    def later(storage, name, data):
        monkeypatch.undo()
        thief.take(steal=True)
        thief.release()
        write(storage, name, data)

    monkeypatch.setattr(Storage, "write", later)  # it has looked, and is about to write
    robbed.renew()
    with pytest.raises(LeaseError, match="was taken over"):
        robbed.renew()
    third = lease_of()
    third.take()
    third.renew()


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"pid": 1}'])
def test_a_damaged_lease_file_holds_nobody_up(lease_of, run, content):
    run.write(".lease-00003.json", content)
    lease = lease_of()
    lease.take()
    lease.renew()


def test_of_many_who_ask_at_once_one_gets_it(lease_of):
    leases = [lease_of() for _ in range(8)]
    assert len(taken_at_once(leases)) == 1


def test_a_thread_renews_the_lease_and_finds_the_thief(tmp_path, clock):
    run = Storage.at(tmp_path)
    with held(Lease(run, clock), every_s=0.01) as lease:
        clock.sleep(50)
        renewed = clock.now().isoformat()
        wait_until(lambda: lease.living().renewed_at == renewed)
        lease.raise_if_lost()
        Lease(run, clock).take(steal=True)
        wait_until(lambda: is_lost(lease))


def test_a_block_that_fails_gives_the_lease_back(lease_of, run):
    def fail():
        with held(lease_of()) as lease:
            lease.renew()
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()
    assert contents(run) == [RELEASED]


def test_a_lease_on_a_disk_expires_unless_it_is_renewed(tmp_path, clock):
    first, second = (Lease(Storage.at(tmp_path), clock) for _ in range(2))
    first.take()
    clock.sleep(EXPIRES_S - 1)
    first.renew()
    pretend(first.storage, machine="another", host="node7")
    clock.sleep(EXPIRES_S - 1)
    with pytest.raises(LeaseError, match="host node7"):
        second.take()
    clock.sleep(2)
    second.take()
    with pytest.raises(LeaseError, match="was taken over by the driver on host"):
        first.renew()


def test_two_threads_of_one_driver_may_renew_at_once(lease_of):
    lease = lease_of()
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
