"""How each fault happens to the process that is at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.chaos.simulator import faults as f
from tests.chaos.simulator.world import Process

if TYPE_CHECKING:
    from tests.chaos.simulator.running import Running


def strike(running: Running, fault: f.Fault, process: Process, what: str) -> None:
    """Let a fault happen, and note it if it did."""
    if _is_awaited(fault, what):
        running.world.faults.setdefault(running.world.steps + 1, []).append(fault)
        return
    if _STRIKES[type(fault)](running, fault, process) is not False:
        running.world.struck.append(fault)
        if running.world.trace is not None:
            running.world.trace.append(f"      {'':8s} {process.name:12s} *** {fault}")


def _kill(running: Running, fault: f.Kill, process: Process) -> None:
    running.world.kill(process)


def _is_awaited(fault: f.Fault, what: str) -> bool:
    """Whether a kill waits for another step than this one."""
    before = fault.before if isinstance(fault, f.Kill) else ""
    return bool(before) and (not what.startswith(_STEPS[before]) or what.endswith(".tmp"))


_STEPS = {"put": ("rename", "PUT"), "remove": ("remove", "DELETE")}


def _signal(running: Running, fault: f.Signal, process: Process) -> bool:
    process.signalled = True
    return process.is_driver


def _power_cut(running: Running, fault: f.PowerCut, process: Process) -> bool | None:
    if running.schedule.world != "disk":
        return False
    running.world.kill_machine(process.machine)
    running.disk.cut_power(fault.lost, fault.torn)
    return None


def _node_loss(running: Running, fault: f.NodeLoss, process: Process) -> None:
    running.world.kill_machine(process.machine)


def _pause(running: Running, fault: f.Pause, process: Process) -> None:
    process.wait(fault.seconds, frozen=True)


def _slow(running: Running, fault: f.Slow, process: Process) -> None:
    process.wait(fault.seconds, frozen=process._aside or process.in_lease)


def _switch(running: Running, fault: f.Switch, process: Process) -> bool:
    return running.world.switch(process, fault.to)


def _full_disk(running: Running, fault: f.FullDisk, process: Process) -> bool:
    running.disk.full_until = running.world.time + fault.seconds
    return not running.is_store


def _outage(running: Running, fault: f.Outage, process: Process) -> bool:
    running.bucket.down_until = running.world.time + fault.seconds
    return running.is_store


def _refused(running: Running, fault: f.Refused, process: Process) -> bool:
    running.bucket.refused += fault.times
    return running.is_store


def _lost_answer(running: Running, fault: f.LostAnswer, process: Process) -> bool:
    running.bucket.unanswered += fault.times
    return running.is_store


def _listing(running: Running, fault: f.Fault, process: Process) -> None:
    running.listing_faults.append(fault)


def _clock_jump(running: Running, fault: f.ClockJump, process: Process) -> None:
    skew = running.world.skew
    skew[process.machine] = skew.get(process.machine, 0.0) + fault.seconds


def _rot(running: Running, fault: f.Rot, process: Process) -> bool:
    state = running.state
    found = [path for path in state.paths() if _is_of(path, fault.of)]
    if not found:
        return False
    path = found[fault.which % len(found)]
    data = state.read(path) or b""
    if fault.kind == "swap":
        folder = path.rpartition("/")[0]
        near = [p for p in found if p.rpartition("/")[0] == folder and p != path] or [
            p for p in found if p != path
        ]
        if not near:
            return False
        other = near[fault.which % len(near)]
        state.put(path, state.read(other) or b"")
        state.put(other, data)
        running.rotten[other] = data
    elif fault.kind == "lose":
        state.lose(path)
    elif fault.kind == "empty":
        state.put(path, b"")
    elif fault.kind == "cut":
        state.put(path, data[: len(data) // 2])
    elif not data:  # it has been emptied before
        return False
    else:
        where = (fault.which * 97 + len(data) // 3) % max(1, len(data))
        state.put(path, data[:where] + bytes([data[where] ^ 0x41]) + data[where + 1 :])
    if (now := state.read(path)) is not None:
        running.rotten[path] = now
    return True


def _is_of(path: str, kind: str) -> bool:
    name = path.rpartition("/")[2]
    if name.startswith(".") or not name.endswith(".parquet"):
        return False
    if kind == "part":
        return "/answers/" in path
    return "/cache/" in path and name.startswith("shard-") == (kind == "shard")


def _lost_ledger(running: Running, fault: f.LostLedger, process: Process) -> bool:
    for ledger in running.ledgers:
        ledger._begun.clear()
    return bool(running.ledgers)


def _poison(running: Running, fault: f.Poison, process: Process) -> bool:
    driver = process if process.is_driver else process.parent
    if driver is None or running.schedule.executor != "cluster":
        return False
    running.poisoned[driver.pid] = f"clip-{fault.clip % running.schedule.clips}"
    return True


def _bad_decode(running: Running, fault: f.BadDecode, process: Process) -> None:
    running.decode_faults.append(fault)


def _arrive(running: Running, fault: f.Arrive, process: Process) -> None:
    from tests.chaos.simulator.programs import arrive

    arrive(running, fault)


_STRIKES: dict[type[f.Fault], Callable[[Any, Any, Any], bool | None]] = {
    f.Kill: _kill,
    f.Signal: _signal,
    f.PowerCut: _power_cut,
    f.NodeLoss: _node_loss,
    f.Pause: _pause,
    f.Slow: _slow,
    f.Switch: _switch,
    f.FullDisk: _full_disk,
    f.Outage: _outage,
    f.Refused: _refused,
    f.LostAnswer: _lost_answer,
    f.StaleListing: _listing,
    f.PartialListing: _listing,
    f.ClockJump: _clock_jump,
    f.Rot: _rot,
    f.LostLedger: _lost_ledger,
    f.Poison: _poison,
    f.BadDecode: _bad_decode,
    f.Arrive: _arrive,
}
