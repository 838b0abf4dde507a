"""Token sets are written while the next clip is encoded, and a row comes when they are in place."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from types import MethodType

import pytest

from pipeline.clips import COMPRESS_VIDEO
from pipeline.errors import DeviceError
from pipeline.runtime.background import done_ahead, threads
from pipeline.storage.objects import UnavailableError

LONG_S = 60.0


def gated(cache, until: threading.Event):
    """Let a cache write nothing before an event."""
    write = cache.write

    def waiting(self, *args):
        assert until.wait(LONG_S), "nobody went on"
        write(*args)

    cache.write = MethodType(waiting, cache)


@pytest.fixture
def is_awaited(monkeypatch):
    """Set when the stage waits for a file for the first time."""
    event, wait = threading.Event(), Future.result

    def noticed(self):
        event.set()
        return wait(self)

    monkeypatch.setattr(Future, "result", noticed)
    return event


@pytest.fixture
def stage(one_clip):
    """The stage as it is beside a GPU."""
    started = one_clip.start(COMPRESS_VIDEO)
    started.writers = threads(2, "writer")
    return started


@pytest.fixture
def clips(one_clip):
    """Three clips; only their keys differ."""
    keys = ("a" * 20, "b" * 20, "c" * 20)
    return [replace(one_clip.decoded, clip_key=key, video_id=key[0]) for key in keys]


def test_the_next_clip_is_encoded_while_one_is_written(one_clip, stage, clips, monkeypatch):
    is_encoding = threading.Event()
    for cache in one_clip.plan.caches.values():
        gated(cache, is_encoding)
    encode, encoded = stage.source.encoded, []

    def noticed(*args):
        encoded.append(args)
        if len(encoded) == 2:
            is_encoding.set()
        return encode(*args)

    monkeypatch.setattr(stage.source, "encoded", noticed)
    rows = list(stage.stream(clips))
    assert [row.video_id for row in rows] == ["a", "b", "c"]
    for cache in one_clip.plan.caches.values():
        assert cache.keys() == {row.clip_key for row in rows}


def test_a_row_comes_when_its_token_sets_are_in_place(one_clip, stage, clips, is_awaited):
    for cache in one_clip.plan.caches.values():
        gated(cache, is_awaited)
    for row in stage.stream(clips):
        assert row.status == "ok"
        assert set(row.compress_ms) == set(one_clip.plan.caches)
        for cache in one_clip.plan.caches.values():
            cache.read(row.clip_key)
        is_awaited.clear()


def test_a_store_that_fails_is_a_fault_of_the_clip(one_clip, stage, clips):
    def unreachable(self, *_):
        raise UnavailableError("the store does not answer")

    (cache, *_) = one_clip.plan.caches.values()
    cache.write = MethodType(unreachable, cache)
    (row, *_) = stage.stream(clips)
    assert row.status == COMPRESS_VIDEO.failure
    assert "the store does not answer" in row.error
    assert row.store_fault


def test_a_clip_is_given_back_before_the_process_of_the_next_one_ends(stage, clips, monkeypatch):
    encode, encoded = stage.source.encoded, []

    def failing(*args):
        encoded.append(args)
        if len(encoded) == 2:
            raise DeviceError("the GPU is lost")
        return encode(*args)

    monkeypatch.setattr(stage.source, "encoded", failing)
    rows = stage.stream(clips)
    assert next(rows).video_id == "a"
    with pytest.raises(DeviceError, match="the GPU is lost"):
        next(rows)


@pytest.mark.parametrize("how", ["closed", "jobs fail", "never begun"])
def test_the_thread_has_nothing_to_do_afterwards(how):
    running, release = threading.Event(), threading.Event()

    def jobs():
        yield from range(3)
        if how == "jobs fail":
            raise RuntimeError("no more clips")
        yield from range(3, 50)

    def work(job):
        if job == 2:
            running.set()
            release.wait(60)
        return job

    coming = done_ahead(jobs(), work, 2)
    if how != "never begun":
        job, got = next(coming)
        assert (job, got.result()) == (0, 0)
        assert running.wait(60)
        release.set()
    if how == "jobs fail":
        with pytest.raises(RuntimeError, match="no more clips"):
            list(coming)
    coming.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("tango-ahead")]


def test_no_third_clip_is_taken_before_the_first_is_written(one_clip, stage, clips, is_awaited):
    (cache, *_) = one_clip.plan.caches.values()
    gated(cache, is_awaited)

    def coming():
        yield from clips[:2]
        assert is_awaited.is_set(), "nobody has waited for the first clip"
        yield clips[2]

    assert [row.video_id for row in stage.stream(coming())] == ["a", "b", "c"]
