"""Clips whose questions are with the language model at the same time."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from jobs_for_tests import job, plan_of

from pipeline.cache.directory import TokenCache
from pipeline.clips import stages_of
from pipeline.executors import local
from pipeline.rows import clips_in
from pipeline.settings import Settings
from tango_core.models.language import batching

METHODS = [
    {"name": "full"},
    {"name": "tango", "retention": 0.2},
    {"name": "fastv", "retention": 0.7},
]
CLIPS = 5


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Clips that are in every cache."""
    folder = tmp_path_factory.mktemp("batches")
    model = {"name": "tiny", "num_frames": 4}
    recipe = job(folder / "shapes", model=model, methods=METHODS, limit=CLIPS)
    filling = plan_of(recipe, folder / "cache", answer=False)
    for cache in filling.caches.values():
        cache.prepare()
    assert all(row.status == "ok" for row in local.stream(filling, Settings("local")))
    return plan_of(recipe, folder / "cache")


def rows_of(plan):
    return list(clips_in(plan.clips))


def start(plan, batch_tokens):
    (stage,) = [stage for stage in stages_of(plan) if stage.on_hits]
    started = stage.start(plan, Settings("local", batch_tokens=batch_tokens))
    started.read_ahead = 4  # as beside a GPU
    return started


def said(result):
    return [
        {key: value for key, value in vars(answer).items() if not key.endswith("_ms")}
        for answer in result.answers
    ]


def test_answers_are_those_of_one_clip_after_the_other(plan):
    alone = list(start(plan, 1).stream(rows_of(plan)))
    together = list(start(plan, 20_000).stream(rows_of(plan)))
    assert [one.video_id for one in together] == plan.clips["video_id"].to_pylist()
    assert [said(one) for one in together] == [said(one) for one in alone]
    assert all(answer.prefill_ms > 0 for one in together for answer in one.answers)


def test_token_sets_are_read_beside_the_language_model_by_one_thread(plan, monkeypatch):
    read, threads = TokenCache.read, []

    def watched(self, key):
        threads.append(threading.current_thread())
        return read(self, key)

    monkeypatch.setattr(TokenCache, "read", watched)
    stage = start(plan, 1)
    list(stage.stream(rows_of(plan)))
    assert len(threads) == CLIPS * len(plan.caches)
    assert len(set(threads)) == 1
    assert threads[0] is not threading.main_thread()


def test_what_goes_wrong_with_a_clip_stays_with_it(plan):
    rows = rows_of(plan)
    expected = [said(one) for one in start(plan, 20_000).stream(rows)]
    broken = [*rows]
    broken[1] = replace(rows[1], clip_key="no-such-clip")
    broken[3] = replace(rows[3], status="decode_failed", error="no frames")
    results = list(start(plan, 20_000).stream(broken))
    assert [said(results[index]) for index in (0, 2, 4)] == [expected[i] for i in (0, 2, 4)]
    assert {answer.status for answer in results[1].answers} == {"answer_failed"}
    assert {answer.status for answer in results[3].answers} == {"decode_failed"}
    assert {answer.error for answer in results[3].answers} == {"no frames"}
    assert [len(one.answers) for one in results] == [len(one) for one in expected]


def test_what_a_call_has_learnt_about_memory_holds_for_the_next_ones(plan, monkeypatch):
    """Ray calls an actor once per block."""
    stage, rows = start(plan, 20_000), rows_of(plan)
    expected = [said(one) for one in stage.stream(rows)]
    run_segments, refused = batching.run_segments, []

    def too_large(loop, segments, **options):
        if len(segments) > 6:
            refused.append(len(segments))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_segments(loop, segments, **options)

    monkeypatch.setattr(batching, "run_segments", too_large)
    assert [said(one) for one in stage.stream(rows)] == expected
    assert refused
    refused.clear()
    assert [said(one) for one in stage.stream(rows)] == expected
    assert not refused


def test_a_call_that_is_broken_off_does_not_meet_the_next_one(plan):
    stage, rows = start(plan, 20_000), rows_of(plan)
    expected = [said(one) for one in stage.stream(rows)]
    broken = stage.stream([replace(rows[0], status="decode_failed", error="no"), *rows[1:]])
    next(broken)  # the others are with the language model
    broken.close()
    assert [said(one) for one in stage.stream(rows)] == expected
