"""Who may write to a run: one driver, the living one."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_clock import FakeClock
from lease_races import taken_at_once

from pipeline.storage import Storage
from pipeline.storage.leases import EXPIRES_S, RELEASED, FileLease, KeptLease, LeaseError, held


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def lease_of(tmp_path, clock):
    """`lease_of()` makes the lease of one more driver of the run."""
    return lambda: FileLease(Storage.at(tmp_path), clock)


def pretend(tmp_path, **changes):
    """Change what the lease file says of its driver."""
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def is_lost(kept):
    """Whether the thread has found that another driver has the run."""
    try:
        kept.raise_if_lost()
    except LeaseError:
        return True
    return False


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_driver_is_refused_in_one_line_with_host_pid_and_age(lease_of, clock):
    lease_of().take()
    clock.sleep(42)
    second = lease_of()
    with pytest.raises(LeaseError) as refused:
        second.take()
    host = os.uname().nodename
    text = str(refused.value)
    assert f"host {host}, pid {os.getpid()} (since 42 s, last seen 42 s ago)" in text
    assert "--steal" in text
    assert "\n" not in text


def test_a_lease_that_is_given_back_says_so_and_is_free(lease_of, tmp_path):
    first = lease_of()
    first.take()
    first.release()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [RELEASED]
    for _ in range(3):
        second = lease_of()
        second.take()
        second.release()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_lease_expires_unless_it_is_renewed(lease_of, clock):
    first = lease_of()
    first.take()
    clock.sleep(EXPIRES_S - 1)
    first.renew()
    clock.sleep(EXPIRES_S - 1)
    with pytest.raises(LeaseError):
        lease_of().take()
    clock.sleep(2)
    lease_of().take()
    with pytest.raises(LeaseError, match="was taken over by the driver on host"):
        first.renew()


def test_a_dead_driver_of_this_machine_is_no_driver(lease_of, tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lease_of().take()
    pretend(tmp_path, pid=dead.pid)
    lease_of().take()


def test_a_driver_of_another_machine_is_dead_when_its_lease_expires(lease_of, tmp_path, clock):
    lease_of().take()
    pretend(tmp_path, pid=2**22 + 1, machine="another", host="node7")
    with pytest.raises(LeaseError, match="host node7"):
        lease_of().take()
    clock.sleep(EXPIRES_S + 1)
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
def test_a_damaged_lease_file_holds_nobody_up(lease_of, tmp_path, content):
    (tmp_path / ".lease-00003.json").write_bytes(content)
    lease = lease_of()
    lease.take()
    lease.renew()


def test_of_many_who_ask_at_once_one_gets_it(lease_of):
    leases = [lease_of() for _ in range(16)]
    assert len(taken_at_once(leases)) == 1


def test_a_thread_renews_the_lease_and_finds_the_thief(lease_of, tmp_path, clock):
    lease = lease_of()
    lease.take()
    kept = KeptLease(lease, every_s=0.01)
    kept.start()
    clock.sleep(50)
    (file,) = (path for path in Path(tmp_path).iterdir() if path.suffix == ".json")
    renewed = clock.now().isoformat()
    wait_until(lambda: json.loads(file.read_text())["renewed_at"] == renewed)
    kept.raise_if_lost()
    lease_of().take(steal=True)
    wait_until(lambda: is_lost(kept))
    kept.stop()


def test_a_block_that_fails_gives_the_lease_back(lease_of, tmp_path):
    def fail():
        with held(lease_of()) as kept:
            kept.renew()
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [RELEASED]
