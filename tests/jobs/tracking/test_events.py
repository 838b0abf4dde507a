"""The events of a job on disk, which a killed driver and a full disk leave readable."""

from __future__ import annotations

import logging
from pathlib import Path

from jobs.tracking.events import EventFile, last_steps, read_events


def steps(path, offset=0):
    return [event["step"] for event, _ in read_events(path, offset)]


def test_events_are_read_once_each(tmp_path):
    path = tmp_path / "tracking" / "events.jsonl"
    events = EventFile(path)
    events.write({"kind": "sample", "step": 1, "metrics": {"a": 1, "b": 1}})
    ((_, offset),) = read_events(path)
    events.write({"kind": "sample", "step": 2, "metrics": {"a": 1}})
    assert steps(path, offset) == [2]
    assert steps(path) == [1, 2]
    assert last_steps(tmp_path) == {"a": 2, "b": 1}


def test_half_a_line_waits_and_a_later_driver_writes_behind_it(tmp_path):
    path = tmp_path / "events.jsonl"
    EventFile(path).write({"step": 1})
    with path.open("a") as file:
        file.write('{"step": 2, "metr')  # a driver was killed here
    assert steps(path) == [1]
    EventFile(path).write({"step": 3})
    assert steps(path) == [1, 3]


def test_a_disk_that_refuses_costs_one_warning(tmp_path, caplog):
    (tmp_path / "tracking").write_text("a file where the folder should be")
    events = EventFile(tmp_path / "tracking" / "events.jsonl")
    with caplog.at_level(logging.WARNING):
        events.write({"step": 1})
        events.write({"step": 2})
    assert len(caplog.records) == 1


def test_secrets_of_urls_do_not_reach_the_disk(tmp_path):
    path = tmp_path / "events.jsonl"
    EventFile(path).write({"reason": "GET s3://key:p%40ss@bucket/x and https://u:p@h/y?z=1 failed"})
    text = path.read_text()
    assert "s3://***@bucket/x and https://***@h/y?z=1 failed" in text
    assert "p%40ss" not in text


def test_a_secret_of_digits_costs_no_line_with_such_a_number(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "17408241")
    path = tmp_path / "events.jsonl"
    event = {"kind": "sample", "time": 1740824100000, "metrics": {"a": 0.17408241}}
    EventFile(path).write({**event, "reason": ["it is 17408241", Path("17408241")]})
    ((read, _),) = read_events(path)
    assert read == {**event, "reason": ["it is ***", "***"]}
