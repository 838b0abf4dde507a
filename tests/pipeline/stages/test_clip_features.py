"""The compress stage with a feature store: the encoder is asked for what is lacking alone."""

from __future__ import annotations

import errno

import pytest
import torch
from jobs_for_tests import job, plan_of

from pipeline.cache.names import SIGNALS
from pipeline.clips import COMPRESS_VIDEO, DECODE_VIDEO, Clip
from pipeline.question_groups import groups_of
from pipeline.rows import clips_in
from pipeline.runtime.background import threads
from pipeline.settings import Settings
from pipeline.stages.answer import AnswerQuestions, ClipState, MethodRequest, facts_of
from tango_core.models.llava.encoder import Encoder as LlavaEncoder

UNIFORM = {"name": "uniform", "retention": 0.25}
TOPK = {"name": "topk", "retention": 0.25}
VISIONZIP = {"name": "visionzip", "retention": 0.25}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


@pytest.fixture
def asked(monkeypatch):
    """Names of the signals of every pass of the encoder."""
    calls = []
    encode = LlavaEncoder.encode

    def counted(self, frames, needs=frozenset()):
        calls.append(set(needs))
        return encode(self, frames, needs)

    monkeypatch.setattr(LlavaEncoder, "encode", counted)
    return calls


def planned(shapes, tmp_path, *methods, answer=True, **cache):
    """A plan for one clip, with its directories made."""
    recipe = job(shapes, limit=1, methods=list(methods), executor="local", cache=cache)
    plan = plan_of(recipe, tmp_path, answer=answer)
    for one in (plan.features.cache, *plan.caches.values()):
        one.prepare()
    return plan


def compressed(plan) -> Clip:
    """The clip behind the compress stage."""
    (row,) = clips_in(plan.clips)
    for stage in (DECODE_VIDEO, COMPRESS_VIDEO):
        if stage.takes(row):
            row = started(stage, plan)(row)
    assert row.status == "ok", row.error
    return row


def started(stage, plan, writers=2):
    """A stage that is ready; as beside a GPU, threads write what it makes."""
    ready = stage.start(plan, Settings("local"))
    if stage is COMPRESS_VIDEO:
        ready.writers = ready.source.writers = threads(writers, "writer")
    return ready


def token_sets(plan, row):
    """Cache -> tokens, as the answer stage reads them."""
    asked = AnswerQuestions(plan.model, plan.methods, plan.caches, {}, plan.features)
    clip = ClipState(row, None)
    for one in plan.methods:
        facts = facts_of(row, one)
        group = groups_of(row, one.method.compressor)[0]
        clip.requests.append(MethodRequest(clip, one, group, [], facts, facts))
    for request in clip.requests:
        asked._read(request)
    return {cache: entry.video.tokens for (cache, _), entry in clip.entries.items()}


def test_a_second_method_needs_neither_decoder_nor_encoder(shapes, tmp_path, asked):
    row = compressed(planned(shapes, tmp_path, UNIFORM, features="all"))
    assert row.encode_ms > 0
    assert asked == [{"saliency", "attention", "keys", "frame_embeddings"}]
    for stored in ("all", "none"):  # a job that stores no features uses those that are there
        plan = planned(shapes, tmp_path, UNIFORM, TOPK, VISIONZIP, features=stored)
        (clip,) = clips_in(plan.clips)
        assert (clip.missing, clip.encode, len(clip.stored)) == ([], [], 2)
        assert not any(stage.takes(clip) for stage in (DECODE_VIDEO, COMPRESS_VIDEO))
        assert not any(cache.keys() for cache in plan.caches.values()), "no token set is stored"
    assert len(asked) == 1


def test_token_sets_are_the_same_with_and_without_the_store(shapes, tmp_path):
    methods = (UNIFORM, TOPK, VISIONZIP, {"name": "tango", "retention": 0.25})
    without = plan_of(job(shapes, limit=1, methods=list(methods)), tmp_path / "none")
    row = compressed(without)
    expected = {name: one.read(row.clip_key).video.tokens for name, one in without.caches.items()}
    for stored in ("all", "tokens"):
        plan = planned(shapes, tmp_path / stored, *methods, features=stored)
        found = token_sets(plan, compressed(plan))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        # Where the signals of a method are not stored, its token set is.
        filled = [
            one.compressor for one in (m.method for m in plan.methods) if one.compressor.needs
        ]
        held = [cache for cache in plan.caches.values() if cache.keys()]
        assert len(held) == (len(filled) if stored == "tokens" else 0)


def test_only_lacking_signals_are_computed_beside_stored_tokens(shapes, tmp_path, asked):
    compressed(planned(shapes, tmp_path, UNIFORM, features="tokens"))
    plan = planned(shapes, tmp_path, UNIFORM, TOPK, features="tokens")
    assert plan.clips["encode"].to_pylist() == [["saliency"]]
    row = compressed(plan)
    assert asked == [set(), {"saliency"}]
    assert set(plan.features.cache.parts()) == {"tokens"}, "the job stores tokens alone"
    plan = planned(shapes, tmp_path, VISIONZIP, features="all")
    assert plan.clips["encode"].to_pylist() == [
        ["attention", "frame_embeddings", "keys", "saliency"]
    ]
    compressed(plan)
    assert planned(shapes, tmp_path, TOPK, features="tokens").clips["encode"].to_pylist() == [[]]
    fresh = planned(shapes, tmp_path / "other", TOPK, VISIONZIP, features="all")
    compressed(fresh)
    stored, expected = (
        one.read(row.clip_key, one.parts(), frozenset(SIGNALS)).features
        for one in (plan.features.cache, fresh.features.cache)
    )
    assert all(torch.equal(getattr(stored, name), getattr(expected, name)) for name in SIGNALS)


def test_eight_bits_have_token_sets_of_their_own_that_do_not_depend_on_who_was_first(
    shapes, tmp_path
):
    exact = planned(shapes, tmp_path / "a", TOPK, features="all")
    first = planned(shapes, tmp_path / "a", TOPK, features="all", feature_dtype="int8")
    later = planned(shapes, tmp_path / "b", UNIFORM, features="all", feature_dtype="int8")
    assert not set(exact.caches) & set(first.caches)
    compressed(later)
    later = planned(shapes, tmp_path / "b", TOPK, features="all", feature_dtype="int8")
    assert later.clips["encode"].to_pylist() == [[]]
    (one,) = token_sets(first, compressed(first)).values()
    (other,) = token_sets(later, compressed(later)).values()
    (whole,) = token_sets(exact, compressed(exact)).values()
    assert torch.equal(one, other)
    assert not torch.equal(one, whole)


@pytest.mark.parametrize("writers", [0, 2])
def test_features_that_cannot_be_written_fail_the_clip(shapes, tmp_path, monkeypatch, writers):
    plan = planned(shapes, tmp_path, UNIFORM, features="all")
    (row,) = clips_in(plan.clips)
    row = started(DECODE_VIDEO, plan)(row)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(plan.features.cache, "put", full)
    row = started(COMPRESS_VIDEO, plan, writers)(row)
    assert row.status == COMPRESS_VIDEO.failure
    assert "No space left on device" in row.error
