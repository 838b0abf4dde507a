"""Profile mode on the built-in model."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from jobs_for_tests import answers_of, job, run, what_was_said
from numbered_videos import write_clip
from summaries import summarize, write_summary

from jobs.results.facts import JobFacts
from pipeline.stages.profile import ProfileCompression

METHODS = [{"name": "full"}, {"name": "tango", "retention": 0.1}]
NUM_CLIPS = 3


@pytest.fixture(scope="module")
def throughput(shapes, tmp_path_factory):
    """A run in a loop, and the folder with its cache."""
    output = tmp_path_factory.mktemp("runs")
    recipe = job(shapes, methods=METHODS, limit=NUM_CLIPS, executor="local")
    return run(recipe, output), output


@pytest.fixture(scope="module")
def profile(shapes, throughput):
    """The same clips as a profile, with the cache that the other run has filled."""
    _, output = throughput
    outcome, run_dir = run(job(shapes, methods=METHODS, limit=NUM_CLIPS, mode="profile"), output)
    return outcome, run_dir, write_summary(run_dir).to_json()


def test_a_profile_ignores_the_cache_and_does_not_count_the_warm_up(profile):
    outcome, _, summary = profile
    assert (outcome.num_clips, outcome.num_decoded) == (NUM_CLIPS, NUM_CLIPS)
    assert (outcome.num_computed, outcome.num_hits) == (2 * NUM_CLIPS, 0)
    assert summary["cache"] == {"hits": 0, "misses": 2 * NUM_CLIPS}


def test_every_stage_is_measured_on_every_clip_or_question(profile):
    _, run_dir, summary = profile
    full, tango = (cell["latency_ms"] for cell in summary["cells"])
    num_questions = len(answers_of(run_dir)) // 2
    per_clip = {"decode_video", "vision", "compress", "cache_read"}
    steps = {"segment", "select", "merge"}
    per_question = {"prefill", "ttft", "decode", "first_token"}
    per_question |= {"answer_from_file", "answer_from_cache"}
    assert full.keys() == per_clip | per_question
    assert tango.keys() == per_clip | per_question | steps
    for latency in (full, tango):
        counts = {stage: times["n"] for stage, times in latency.items()}
        assert {counts[stage] for stage in (per_clip | steps) & counts.keys()} == {NUM_CLIPS}
        assert {counts[stage] for stage in per_question} == {num_questions}
        assert all(times["p50"] > 0 for times in latency.values())


def test_the_latency_of_an_answer_includes_all_earlier_stages(profile):
    tango = answers_of(profile[1]).query("method == 'tango'")
    read = tango.groupby("video_id")["cache_read_ms"].transform("max")
    from_cache = read + tango["ttft_ms"] + tango["decode_ms"]
    made = ["decode_video_ms", "encode_ms", "compress_ms", "ttft_ms", "decode_ms"]
    latency = profile[2]["cells"][1]["latency_ms"]
    assert latency["answer_from_cache"]["mean"] == pytest.approx(from_cache.mean())
    assert latency["answer_from_file"]["mean"] == pytest.approx(tango[made].sum(axis=1).mean())


def test_profiling_changes_no_answer_and_throughput_measures_no_steps(profile, throughput):
    (_, run_dir), _ = throughput
    columns = ["peak_gib", "peak_of"]
    pd.testing.assert_frame_equal(
        what_was_said(profile[1]).drop(columns=columns),
        what_was_said(run_dir).drop(columns=columns),
    )
    answers = answers_of(run_dir)
    steps = ["segment_ms", "select_ms", "merge_ms", *columns]
    assert answers[steps].isna().all(axis=None)
    assert answers.groupby("video_id")["encode_ms"].nunique().max() == 1
    stages = write_summary(run_dir).latency_ms
    assert not stages.keys() & {"segment", "first_token", "answer_from_cache"}


def test_answers_of_earlier_versions_can_still_be_summarised(profile):
    _, run_dir, _ = profile
    columns = ["segment_ms", "select_ms", "merge_ms", "peak_gib", "peak_of"]
    old = summarize(answers_of(run_dir).drop(columns=columns), JobFacts.load(run_dir)).to_json()
    assert json.dumps(old)
    assert "segment" not in old["cells"][1]["latency_ms"]
    assert old["cells"][1]["peak_gib"] is None


def test_only_the_first_good_clip_is_run_twice(tmp_path, monkeypatch):
    videos = tmp_path / "videos"
    videos.mkdir()
    (videos / "a.mp4").write_text("no video")
    for name in ("b.mp4", "c.mp4"):
        write_clip(videos / name, 24)
    table = videos / "questions.csv"
    table.write_text("video,question\n" + "".join(f"{n}.mp4,Why?\n" for n in "abc"))
    compressed = []
    compress = ProfileCompression._compress
    monkeypatch.setattr(
        ProfileCompression,
        "_compress",
        lambda self, clip: compressed.append(clip.video_id) or compress(self, clip),
    )
    recipe = job(videos, benchmark={"name": "custom", "root": str(videos)}, mode="profile")
    outcome, run_dir = run(recipe, tmp_path / "runs")
    assert compressed == ["b.mp4", "b.mp4", "c.mp4"]
    assert (outcome.num_clips, outcome.num_failed_clips) == (3, 1)
    assert len(answers_of(run_dir)) == 3
