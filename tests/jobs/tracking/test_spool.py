"""The record of a job on disk, which a killed driver and a full disk leave readable."""

from __future__ import annotations

import logging
from pathlib import Path

from jobs.tracking.spool import Sent, Spool, last_steps, read_events, store_key
from pipeline.redaction import redacted


def steps(path, offset=0):
    return [event["step"] for event, _ in read_events(path, offset)]


def test_events_are_read_once_each(tmp_path):
    path = tmp_path / "tracking" / "events.jsonl"
    spool = Spool(path)
    spool.write({"kind": "sample", "step": 1, "metrics": {"a": 1, "b": 1}})
    ((_, offset),) = read_events(path)
    spool.write({"kind": "sample", "step": 2, "metrics": {"a": 1}})
    assert steps(path, offset) == [2]
    assert steps(path) == [1, 2]
    assert last_steps(tmp_path) == {"a": 2, "b": 1}


def test_half_a_line_waits_and_a_later_driver_writes_behind_it(tmp_path):
    path = tmp_path / "events.jsonl"
    Spool(path).write({"step": 1})
    with path.open("a") as file:
        file.write('{"step": 2, "metr')  # a driver was killed here
    assert steps(path) == [1]
    Spool(path).write({"step": 3})
    assert steps(path) == [1, 3]


def test_a_full_spool_costs_one_warning_and_still_takes_the_end(tmp_path, caplog):
    path = tmp_path / "events.jsonl"
    spool = Spool(path, max_bytes=200)
    with caplog.at_level(logging.WARNING):
        for step in range(100):
            spool.write({"kind": "sample", "step": step})
        spool.write({"kind": "end", "step": 100})
    assert len(caplog.records) == 1
    assert path.stat().st_size < 300
    assert steps(path)[-1] == 100


def test_a_disk_that_refuses_costs_one_warning(tmp_path, caplog):
    (tmp_path / "tracking").write_text("a file where the folder should be")
    spool = Spool(tmp_path / "tracking" / "events.jsonl")
    with caplog.at_level(logging.WARNING):
        spool.write({"step": 1})
        spool.write({"step": 2})
    assert len(caplog.records) == 1


def test_what_was_sent_is_kept_per_store_and_without_secrets(tmp_path):
    first, second = "http://me:secret@host:5000", "http://me:other@host:5000"
    sent = Sent.load(tmp_path, first)
    sent.run, sent.offsets = "abc", {"events.jsonl": 7}
    sent.save()
    assert Sent.load(tmp_path, first).offsets == {"events.jsonl": 7}
    assert Sent.load(tmp_path, second).run == "", "another password may be another store"
    assert "secret" not in sent.path.read_text()
    assert store_key(first) != store_key(second)
    sent.path.write_text("{ damaged")
    assert Sent.load(tmp_path, first).run == ""


def test_what_was_sent_of_one_spool_says_nothing_of_another(tmp_path):
    path = tmp_path / "tracking" / "events.jsonl"
    own = Spool(path)
    for step in range(2):
        own.write({"driver": 1, "step": step})
    sent = Sent.load(tmp_path, "http://one")
    assert sent.offset_in(path) == 0
    base = path.read_bytes()
    sent.sent_until(path, len(base))
    own.write({"driver": 1, "step": 2})
    known = Sent.load(tmp_path, "http://one")
    assert known.offset_in(path) == len(base)
    path.write_bytes(b"")
    assert known.offset_in(path) == 0
    # Both drivers took up what an earlier attempt had said, and went on from there.
    for driver, num_events in ((2, 9), (3, 20)):
        path.write_bytes(base)
        other = Spool(path)
        for step in range(num_events):
            other.write({"driver": driver, "step": step})
        if driver == 2:
            assert known.offset_in(path) == len(base)
            known.sent_until(path, path.stat().st_size)
    assert known.offset_in(path) == 0


def test_offsets_of_a_release_that_knew_no_heads_still_count(tmp_path):
    path = tmp_path / "tracking" / "events.jsonl"
    Spool(path).write({"step": 1})
    sent = Sent.load(tmp_path, "http://one")
    sent.offsets = {path.name: 5}
    sent.save()
    assert Sent.load(tmp_path, "http://one").offset_in(path) == 5


def test_secrets_of_urls_do_not_reach_the_disk(tmp_path):
    path = tmp_path / "events.jsonl"
    Spool(path).write({"reason": "GET s3://key:p%40ss@bucket/x and https://u:p@h/y?z=1 failed"})
    text = path.read_text()
    assert "s3://***@bucket/x and https://***@h/y?z=1 failed" in text
    assert "p%40ss" not in text


def test_a_secret_of_digits_costs_no_line_with_such_a_number(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "17408241")
    path = tmp_path / "events.jsonl"
    event = {"kind": "sample", "time": 1740824100000, "metrics": {"a": 0.17408241}}
    Spool(path).write({**event, "reason": ["it is 17408241", Path("17408241")]})
    ((read, _),) = read_events(path)
    assert read == {**event, "reason": ["it is ***", "***"]}


def test_addresses_without_secrets_stay_as_they_are():
    for text in ("sqlite:////data/a@b/mlflow.db", "http://host:5000/x@y", "mail me@home", ""):
        assert redacted(text) == text
