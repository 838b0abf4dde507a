"""Methods that read the question, from a recipe to its answers."""

from __future__ import annotations

import csv
import json
import weakref
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from jobs_for_tests import answers_of, job, plan_of, run, what_was_said
from summaries import summarize

from jobs.report.tables.cells import cells_csv, cells_table
from jobs.results.facts import JobFacts
from pipeline.cache.directory import TokenCache
from pipeline.cache.folders import find_caches
from pipeline.clips import ANSWER_QUESTIONS, COMPRESS_VIDEO, DECODE_VIDEO, questions_of
from pipeline.question_groups import groups_of
from pipeline.rows import clips_in
from pipeline.settings import Settings
from tango_core.errors import InputError
from tango_core.models import load_encoder, load_question_embedder
from tango_core.models.llava.encoder import Encoder
from tango_core.video.decode import decode_frames

METHODS = [
    {"name": "full"},
    {"name": "divprune", "retention": 0.1},
    {"name": "cdpruner", "retention": 0.1},
    {"name": "rediprune", "retention": 0.1},
    {"name": "semvid", "retention": 0.1},
    {"name": "cdpruner", "retention": 0.2, "variant": "clip", "text": "question_and_options"},
]
STORE = {"features": "all"}


def entries_of(root, method):
    """Names of the entries in a method's cache."""
    (cache,) = (one for one in find_caches(root) if f"-{method}-" in one.name)
    return {Path(entry.path).stem for entry in cache.entries}


def test_any_number_of_them_costs_no_encoding_once_features_are_stored(shapes, tmp_path):
    recipe = {"executor": "local", "limit": 2}
    methods = [METHODS[0], METHODS[3]]  # so that the tower's tokens are stored
    first, _ = run(job(shapes, **recipe, cache=STORE, methods=methods), tmp_path / "on")
    assert (first.num_decoded, first.num_encoded) == (2, 2)
    second, on = run(job(shapes, **recipe, cache=STORE, methods=METHODS), tmp_path / "on")
    assert (second.num_decoded, second.num_encoded) == (0, 0)
    stored = [one for one in find_caches(tmp_path / "on" / "cache") if one.num_clips]
    assert [one.holds_features for one in stored] == [True], "features, and no token set"
    third, off = run(job(shapes, **recipe, methods=METHODS), tmp_path / "off")
    assert (third.num_decoded, third.num_encoded) == (2, 2)
    pd.testing.assert_frame_equal(what_was_said(on), what_was_said(off))


def test_every_question_waits_for_its_own_pruning(shapes, tmp_path):
    recipe = job(shapes, executor="local", limit=2, methods=METHODS[1:3], mode="profile")
    _, run_dir = run(recipe, tmp_path)
    blind, reading = summarize(answers_of(run_dir), JobFacts.load(run_dir)).cells
    assert (blind.reads_question, reading.reads_question) == (False, True)
    times = answers_of(run_dir).groupby(["method", "video_id"])["compress_ms"].nunique()
    clips = clips_in(plan_of(recipe, tmp_path).clips)
    texts = sum(len({question.text for question in questions_of(clip)}) for clip in clips)
    assert times["divprune"].tolist() == [1, 1]
    assert times["cdpruner"].sum() == texts > 2
    assert blind.latency_ms["compress"].n == 2
    assert reading.latency_ms["compress"].n == texts
    (row,) = csv.DictReader(cells_csv([reading]).splitlines())
    assert float(row["first_token_ms"]) == reading.first_token_ms > reading.p50("compress") > 0
    assert "per question" in cells_table([reading]).csv()


def test_a_token_set_belongs_to_a_text_and_is_that_of_its_question(shapes, tmp_path):
    recipe = job(shapes, executor="local", limit=1, methods=METHODS[1:3])
    plan = plan_of(recipe, tmp_path / "cache")
    (clip,) = clips_in(plan.clips)
    compressor = plan.methods[1].method.compressor
    twice = replace(clip, questions=clip.questions[:-1] + "," + clip.questions[1:])
    groups = groups_of(clip, compressor)
    assert [one.key for one in groups_of(twice, compressor)] == [one.key for one in groups]
    assert {len(one.questions) for one in groups_of(twice, compressor)} == {2}
    _, run_dir = run(recipe, tmp_path)
    assert entries_of(tmp_path / "cache", "cdpruner") == {one.key for one in groups}
    assert entries_of(tmp_path / "cache", "divprune") == {clip.clip_key}

    frames = decode_frames(clip.path, plan.model.frames)
    features = load_encoder(plan.model).encode(frames, compressor.needs)
    embed = load_question_embedder(plan.model)
    answered = answers_of(run_dir).query("cell == 'cdpruner r=0.1'").set_index("question_id")
    kept = []
    for group in groups:
        expected = compressor.compress(replace(features, question=embed(group.text)))
        found = plan.caches[plan.methods[1].cache].read(group.key).video
        assert torch.equal(found.indices, expected.indices)
        assert torch.equal(found.tokens, expected.tokens)
        kept.append(tuple(found.indices.tolist()))
        for index in group.questions:
            question = questions_of(clip)[index]
            assert answered.loc[question.id, "tokens_kept"] == found.num_kept
    assert len(set(kept)) > 1, "the questions choose other tokens"

    again, _ = run(recipe, tmp_path)
    assert (again.num_decoded, again.num_encoded, again.num_computed) == (0, 0, 0)


def test_the_control_reads_what_another_clip_is_asked(shapes, tmp_path):
    methods = [{**METHODS[2], "question": question} for question in ("own", "other_clip")]
    recipe = job(shapes, executor="local", limit=3, methods=methods)
    plan = plan_of(recipe, tmp_path / "cache")
    own, other = (one.method.compressor for one in plan.methods)
    outcome, _ = run(recipe, tmp_path)
    assert outcome.num_encoded == 3
    embed, encoder = load_question_embedder(plan.model), load_encoder(plan.model)
    clips = list(clips_in(plan.clips))
    for index, clip in enumerate(clips):
        features = encoder.encode(decode_frames(clip.path, plan.model.frames), frozenset())
        asked = [{one.text for one in questions_of(each)} for each in (clip, clips[index - 1])]
        for question in questions_of(clip):
            text = other.question_text(question)
            assert text in asked[1] - asked[0]
            (group,) = (one for one in groups_of(clip, other) if one.text == text)
            found = plan.caches[plan.methods[1].cache].read(group.key).video
            expected = own.compress(replace(features, question=embed(text)))
            assert torch.equal(found.tokens, expected.tokens)
    with pytest.raises(InputError, match="question=other_clip: no other clip"):
        plan_of(job(shapes, executor="local", limit=1, methods=methods), tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.ray
def test_ray_gives_the_same_answers(shapes, tmp_path, local_ray):
    _, on_ray = run(job(shapes, limit=3, methods=METHODS, cache=STORE), tmp_path / "ray")
    _, clean = run(job(shapes, executor="local", limit=3, methods=METHODS), tmp_path / "clean")
    pd.testing.assert_frame_equal(what_was_said(on_ray), what_was_said(clean))


def test_memory_does_not_grow_with_clips_or_questions(shapes, tmp_path, monkeypatch):
    plan = plan_of(job(shapes, executor="local", limit=3, methods=METHODS[1:4]), tmp_path)
    settings, encode, write = Settings("local"), Encoder.encode, TokenCache.write
    encoded, held, written = [], [], []

    def remembered(self, *args):
        features = encode(self, *args)
        encoded.append(weakref.ref(features.tokens))
        return features

    def counted(self, *args):
        held.append(sum(tokens() is not None for tokens in encoded))
        written.append(args[0].key)
        return write(self, *args)

    monkeypatch.setattr(Encoder, "encode", remembered)
    monkeypatch.setattr(TokenCache, "write", counted)
    decode, compress = (stage.start(plan, settings) for stage in (DECODE_VIDEO, COMPRESS_VIDEO))
    asked = []
    for clip in clips_in(plan.clips):
        (first, *_) = json.loads(clip.questions)
        questions = [
            {**first, "id": f"{clip.video_id}-{n}", "text": f"{first['text']} {n % 10} {n // 10}"}
            for n in range(20)
        ]
        asked.append(replace(clip, questions=json.dumps(questions)))
    done = list(compress.stream(decode(clip) for clip in asked))
    assert len(set(written)) == 3 * (1 + 20)
    assert (len(encoded), max(held)) == (3, 1)
    answer = ANSWER_QUESTIONS.start(plan, settings)
    entries, request = [], answer._request

    def looked_at(session, one):
        prompts = request(session, one)
        entries.append(len(one.work.entries))
        return prompts

    monkeypatch.setattr(answer, "_request", looked_at)
    results = list(answer.stream(replace(clip, missing=[]) for clip in done))
    assert {len(result.answers) for result in results} == {3 * 20}
    assert max(entries) == 1, "that of the method that does not read the question"


def test_a_clip_that_lacks_one_of_its_token_sets_is_compressed_again(shapes, tmp_path):
    recipe = job(shapes, executor="local", limit=2, methods=METHODS[2:3])
    _, first = run(recipe, tmp_path)
    (cache,) = (one for one in find_caches(tmp_path / "cache") if one.num_clips)
    next((tmp_path / "cache" / cache.name).glob("*.parquet")).unlink()
    outcome, second = run(recipe, tmp_path)
    assert (outcome.num_encoded, outcome.num_hits) == (1, 1)
    pd.testing.assert_frame_equal(what_was_said(first), what_was_said(second))
