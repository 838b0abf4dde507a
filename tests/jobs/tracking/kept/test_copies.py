"""The spool of a run in a store outlives its driver: what is copied, when, in how many requests."""

from __future__ import annotations

import logging
import threading

from fake_clock import FakeClock
from kept_spools import EVERY_S, a_job, names, steps
from live_jobs import plan
from s3_server import times

from jobs.run.desk import desk_of
from jobs.tracking.parts import PART_BYTES, spool_at_hand
from jobs.tracking.spool import Sent, Spool


def test_what_a_killed_driver_said_is_there_for_the_next_one(kept_at, run_dir, tmp_path):
    kept, spool = kept_at(tmp_path / "first")
    for step in range(3):
        spool.write({"step": step})
        kept.send()
    sent = Sent.load(tmp_path / "first", "http://one")
    sent.run, sent.offsets = "abc", {"events.jsonl": 7}
    sent.save()
    kept.send()
    with spool.path.open("a") as file:
        file.write('{"step": 3')  # it is killed here, in the middle of a line
    kept.send()
    kept, spool = kept_at(tmp_path / "second")
    assert steps(tmp_path / "second") == [0, 1, 2]
    assert Sent.load(tmp_path / "second", "http://one").offsets == {"events.jsonl": 7}
    spool.write({"step": 4})
    kept.send()
    spool.write({"step": 5})
    kept.send()
    with spool_at_hand(run_dir) as third:
        assert steps(third) == [0, 1, 2, 4, 5]
    whole, sent_json, part = sorted(names(run_dir), key=len)
    assert (whole, sent_json) == ("tracking/sent.json", "tracking/events.jsonl")
    assert part.endswith("/events.jsonl/000000"), "the parts of the first attempt are gone"


def test_offsets_are_never_ahead_of_the_bytes_that_are_kept(kept_at, run_dir, tmp_path, server):
    kept, spool = kept_at(tmp_path / "first")
    spool.write({"step": 1})
    sent = Sent.load(tmp_path / "first", "http://one")
    sent.offsets = {"events.jsonl": spool.path.stat().st_size}
    sent.save()
    with server.with_rule(times(9, "503", "PUT", "parts")):
        kept.send()
    with spool_at_hand(run_dir) as there:
        assert Sent.load(there, "http://one").offsets == {}
    kept.send()
    with spool_at_hand(run_dir) as there:
        assert Sent.load(there, "http://one").offsets == sent.offsets
        assert steps(there) == [1]


def test_objects_and_bytes_are_bounded(kept_at, run_dir, tmp_path, server):
    kept, spool = kept_at(tmp_path / "desk")
    server.requests.clear()
    lines, size = 120, PART_BYTES // 20
    for step in range(lines):
        spool.write({"step": step, "filled": "x" * size})
        kept.send()
    assert len(names(run_dir)) <= lines * (size + 50) / PART_BYTES + 1
    puts = [request for request in server.requests if request.method == "PUT"]
    assert len(puts) <= lines + len(names(run_dir))
    assert max(int(request.headers["Content-Length"]) for request in puts) < 1.2 * PART_BYTES
    with spool_at_hand(run_dir) as there:
        assert steps(there) == list(range(lines))


def test_requests_become_rare_as_a_job_grows_old(kept_at, run_dir, tmp_path, server, monkeypatch):
    monkeypatch.setattr("jobs.tracking.kept._MOST_AT_FULL_RATE", 20)
    clock = FakeClock()
    kept, spool = kept_at(tmp_path / "desk", clock)
    server.requests.clear()
    for hour in range(7 * 24):
        for _ in range(12):
            spool.write({"step": hour})
            clock.sleep(300.0)
            kept._tick()
    assert 80 < server.counts()["PUT"] < 200, "it grows with the logarithm of the time"


def test_a_store_that_is_away_costs_one_warning_and_gets_it_later(
    kept_at, run_dir, tmp_path, server, caplog
):
    with server.with_rule(lambda request: "503"), caplog.at_level(logging.WARNING):
        kept, spool = kept_at(tmp_path / "desk")
        for step in range(2):
            spool.write({"step": step})
            kept.send()
    (record,) = [one for one in caplog.records if one.name == "jobs.tracking.kept"]
    assert "not kept in the store" in record.getMessage()
    kept.send()
    with spool_at_hand(run_dir) as there:
        assert steps(there) == [0, 1]


def test_what_could_not_be_brought_here_is_not_replaced(run_dir, tmp_path, server, kept_at):
    kept, spool = kept_at(tmp_path / "first")
    for step in range(2):
        spool.write({"step": step})
        kept.send()
    a_job(run_dir)  # its whole file is there now
    kept, spool = kept_at(tmp_path / "killed")
    spool.write({"step": 2})
    kept.send()
    before = names(run_dir)
    with desk_of(run_dir, EVERY_S) as desk:
        with server.with_rule(times(9, "503", "GET", "tracking/events")):
            desk.started(plan(), 0)
        Spool(desk.path / "tracking" / "events.jsonl").write({"step": 3})
    assert set(before) < set(names(run_dir))
    with spool_at_hand(run_dir) as there:
        assert sorted(steps(there)) == [0, 1, 1, 2, 3]


def test_a_copy_under_way_comes_before_the_whole_files(run_dir, tmp_path, server, kept_at):
    kept, spool = kept_at(tmp_path / "killed")
    spool.write({"step": 0})
    kept.send()
    under_way, go_on = threading.Event(), threading.Event()

    def slowly(request):
        whole = request.method == "PUT" and request.path.endswith("tracking/events.jsonl")
        if whole and not under_way.is_set():
            under_way.set()
            go_on.wait(60)

    with server.with_rule(slowly), desk_of(run_dir, EVERY_S) as desk:
        desk.started(plan(), 0)
        Spool(desk.path / "tracking" / "events.jsonl").write({"step": 1})
        sender = threading.Thread(target=desk._kept.send)
        sender.start()
        assert under_way.wait(60)
        threading.Timer(1.0, go_on.set).start()
    sender.join()
    assert names(run_dir) == ["tracking/events.jsonl"]
    with spool_at_hand(run_dir) as there:
        assert steps(there) == [0, 1]
