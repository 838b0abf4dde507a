"""A decoded clip in, entries in the caches and a small row out."""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from jobs_for_tests import job, plan_of
from methods_as_files import own_method
from ray import cloudpickle

from pipeline.cache.directory import open_cache
from pipeline.clips import ANSWER_QUESTIONS, COMPRESS_VIDEO
from pipeline.errors import WorkerError
from pipeline.settings import Settings
from pipeline.stages.compress import raise_if_other_code
from tango_core import build_method
from tango_core.code_identity import PACKAGE
from tango_core.compressors import base
from tango_core.compressors.baselines import Full


@pytest.fixture
def compress(one_clip):
    return one_clip.start(COMPRESS_VIDEO)


def test_a_clip_is_in_every_cache_that_lacked_it(one_clip, compress):
    row = compress(one_clip.decoded)
    assert row.frames is None, "the frames stay behind"
    assert row.status == "ok"
    assert row.encode_ms > 0
    assert set(row.compress_ms) == set(one_clip.plan.caches)
    kept = {}
    for name, cache in one_clip.plan.caches.items():
        entry = cache.read(row.clip_key)
        kept[one_clip.plan.compressors[name].retention] = entry.video.num_kept
        assert entry.decode_video_ms == one_clip.decoded.decode_video_ms
        assert entry.encode_ms == row.encode_ms
    assert kept[0.25] == pytest.approx(kept[1.0] / 4, rel=0.1)


def test_only_the_caches_that_the_row_names_are_filled(one_clip, compress):
    first, second = one_clip.plan.caches
    row = compress(replace(one_clip.decoded, missing=[second]))
    assert set(row.compress_ms) == {second}
    assert one_clip.plan.caches[first].keys() == set()


def test_frames_that_the_encoder_cannot_take_are_a_failed_row(one_clip, compress):
    frames = one_clip.decoded.frames
    row = compress(replace(one_clip.decoded, frames=replace(frames, pixels=frames.pixels[:, :2])))
    assert row.status == COMPRESS_VIDEO.failure
    assert "frames must be (128, 128) pixels" in row.error
    assert row.frames is None
    assert all(cache.keys() == set() for cache in one_clip.plan.caches.values())


@dataclass(frozen=True)
class Broken(Full):
    """A method that fails on every clip."""

    def compress(self, features, **rest):
        raise RuntimeError("two\nlines")


def test_a_clip_without_any_method_that_works_is_a_failed_row(one_clip, compress):
    compress.compressors = dict.fromkeys(compress.compressors, Broken())
    row = compress(one_clip.decoded)
    assert (row.status, row.error) == ("encode_failed", "RuntimeError: two lines")


def test_a_method_that_fails_keeps_what_others_have_computed(one_clip, compress):
    first, second = one_clip.plan.caches
    compress.compressors[second] = Broken()
    row = compress(one_clip.decoded)
    assert (row.status, row.error) == ("ok", None)
    assert row.compress_errors == {second: "RuntimeError: two lines"}
    assert one_clip.plan.caches[first].keys() == {row.clip_key}
    assert one_clip.plan.caches[second].keys() == set()


OWN = own_method("Own")


@pytest.fixture
def plan(tmp_path):
    methods = [{"name": name, "retention": 0.25} for name in ("uniform", "tango")]
    recipe = job(tmp_path / "shapes", limit=1, methods=[{"name": "full"}, *methods])
    return plan_of(recipe, tmp_path / "cache")


def edited(monkeypatch, digest):
    """What a process with edited files of the package has."""
    monkeypatch.setattr(base, "edited_digest", lambda: digest)


def test_a_worker_with_another_checkout_does_not_start(plan, monkeypatch):
    edited(monkeypatch, "0123456789abcdef")
    with pytest.raises(WorkerError) as caught:
        COMPRESS_VIDEO.start(plan, Settings("local"))
    said = str(caught.value)
    assert said == (
        f"the code of method 'uniform' on {socket.gethostname()} is not the driver's "
        "(edited_digest): install the same code on every node"
    )


# A worker as it starts, with the released code and with an edited file on its machine.
WORKER = """
import pickle, sys
from pipeline.errors import WorkerError
from pipeline.stages.compress import raise_if_other_code
from tango_core.compressors import base
for digest in (None, "0123456789abcdef"):
    base.edited_digest = lambda: digest
    with open(sys.argv[1], "rb") as file:
        compressor, cache = pickle.load(file)
    assert type(compressor).__module__ not in sys.modules
    try:
        raise_if_other_code({cache.name: compressor}, {cache.name: cache})
        print("started")
    except WorkerError as error:
        print(error)
"""


def test_a_class_that_was_sent_with_its_code_is_the_drivers(plan, tmp_path, monkeypatch):
    (tmp_path / "own_method.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("own_method")
    sent = build_method("own_method:Own", retention=0.25).compressor
    cache = open_cache(str(tmp_path), plan.model, sent)
    raise_if_other_code({cache.name: sent}, {cache.name: cache})
    cloudpickle.register_pickle_by_value(module)
    (tmp_path / "sent").write_bytes(cloudpickle.dumps((sent, cache)))
    cloudpickle.unregister_pickle_by_value(module)
    command = [sys.executable, "-c", WORKER, str(tmp_path / "sent")]
    root = PACKAGE.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    unedited, edited_there = done.stdout.splitlines()
    assert unedited == "started"
    assert "is not the driver's (edited_digest)" in edited_there
    del sys.modules["own_method"]


def test_a_driver_with_edited_code_is_not_served_by_released_code(plan, tmp_path, monkeypatch):
    edited(monkeypatch, "0123456789abcdef")
    compressor = build_method("tango", retention=0.25).compressor
    cache = open_cache(str(tmp_path), plan.model, compressor)
    edited(monkeypatch, None)
    with pytest.raises(WorkerError, match="is not the driver's"):
        raise_if_other_code({cache.name: compressor}, {cache.name: cache})


@pytest.fixture
def measured(one_clip):
    """The clip after compression in profile mode."""
    return one_clip.start(COMPRESS_VIDEO, profile=True)(one_clip.decoded)


def test_a_clip_is_encoded_once_per_cache_and_measured_each_time(one_clip, measured):
    profile = measured.profile
    assert set(profile) == set(one_clip.plan.caches)
    passes = [times["vision"] for times in profile.values()]
    assert len(set(passes)) == 2
    assert measured.encode_ms == pytest.approx(sum(passes))
    assert all(times["peak_gib"] > 0 for times in profile.values())
    for name, cache in one_clip.plan.caches.items():
        entry = cache.read(measured.clip_key)
        assert entry.encode_ms == profile[name]["vision"]
        assert entry.compress_ms == profile[name]["compress"]


def test_answers_carry_the_times_of_their_own_method(one_clip, measured):
    result = one_clip.start(ANSWER_QUESTIONS, profile=True)(measured)
    profile = measured.profile
    caches = {cell.name: cell.cache for cell in one_clip.plan.methods}
    for row in result.answers:
        times = profile[caches[row.cell]]
        assert row.encode_ms == times["vision"]
        assert row.peak_gib >= times["peak_gib"]
        assert row.peak_of in ("process", "device")
