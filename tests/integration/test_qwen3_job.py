"""A job on Qwen3-VL: real files, tokens with their companions through caches and plans, answers."""

from __future__ import annotations

import io
import json

import pytest
from jobs_for_tests import answers_of, job, plan_of, run, what_was_said
from numbered_videos import write_clip
from qwen3_checkpoints import NAME, build_qwen3, save_qwen3
from rich.console import Console

from jobs.analysis.command import Places
from jobs.analysis.sinks import SinkOptions, analyze_sinks
from jobs.estimate.tokens import expect_tokens
from tango_core import build_method, decode_frames, load_encoder, load_language_model
from tango_core.benchmarks import build_benchmark

METHODS = [
    {"name": "tango", "retention": 0.2},
    {"name": "fastv", "retention": 0.7, "layer": 2},
]
OPTIONS = {"num_frames": 8, "max_pixels": 2000, "min_pixels": 64}
NUM_CLIPS = 2


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Checkpoint, and the directory of the generated clips."""
    path = save_qwen3(build_qwen3(), tmp_path_factory.mktemp("checkpoint"))
    return str(path), tmp_path_factory.mktemp("shapes")


def recipe(places, methods=METHODS, **changes):
    path, shapes = places
    model = {"name": NAME, "path": path, **OPTIONS, **changes.pop("model", {})}
    own = {"limit": NUM_CLIPS, "executor": "local", **changes}
    return job(shapes, model=model, methods=methods, **own)


@pytest.mark.slow
def test_a_job_says_what_the_two_halves_say_called_by_hand(places, tmp_path):
    path, shapes = places
    _, run_dir = run(recipe(places), tmp_path)
    answers = answers_of(run_dir).set_index(["video_id", "question_id", "method"])
    encoder = load_encoder(NAME, path, **OPTIONS)
    language_model = load_language_model(NAME, path, **OPTIONS)
    benchmark = build_benchmark("shapes", root=str(shapes))
    num_compared = 0
    for item in benchmark.items(NUM_CLIPS):
        frames = decode_frames(item.path, encoder.spec.frames, item.clip)
        for options in METHODS:
            method = build_method(num_layers=6, model=NAME, **options)
            features = encoder.encode(frames, method.compressor.needs)
            assert features.companions.shape[:3] == (4, 25, 3)
            video = method.compressor.compress(features)
            said = language_model.answer(
                video,
                [benchmark.protocol.render(question) for question in item.questions],
                pruner=method.pruner,
                max_new_tokens=benchmark.protocol.max_new_tokens,
            )
            for question, answer in zip(item.questions, said, strict=True):
                row = answers.loc[(item.video_id, question.id, options["name"])]
                assert row["status"] in ("ok", "unparsed")
                assert row["text"] == answer.text
                assert row["prompt_tokens"] == answer.prompt_tokens
                assert row["tokens_kept"] == row["tokens_with_newlines"] == video.num_kept
                assert row["clip_text_tokens"] == answer.clip_text_tokens == 4 * (13 + 2)
                num_compared += 1
    assert num_compared == len(answers) > NUM_CLIPS


@pytest.mark.slow
@pytest.mark.parametrize("companions", ["merge", "anchor"])
def test_stored_features_and_plans_give_the_same_answers(places, tmp_path, companions):
    said = []
    for features, place in (("none", "tokens"), ("all", "plans"), ("all", "plans")):
        content = recipe(
            places,
            METHODS[:1],
            model={"companions": companions},
            cache={"features": features},
        )
        _, run_dir = run(content, tmp_path / place)
        said.append(what_was_said(run_dir))
    for other in said[1:]:
        assert other.equals(said[0])


def test_empty_blocks_are_another_prompt_of_the_same_tokens(places, tmp_path):
    """Two of a hundred tokens: most pairs of frames keep none."""
    methods = [{"name": "topk", "retention": 0.02, "score": "attention"}]
    prompts, caches = {}, {}
    for empty in ("keep", "drop"):
        content = recipe(places, methods, model={"empty_blocks": empty})
        _, run_dir = run(content, tmp_path)
        answers = answers_of(run_dir)
        assert set(answers["tokens_kept"]) == {2}
        prompts[empty] = answers[["prompt_tokens", "clip_text_tokens"]]
        caches[empty] = set(answers.groupby("video_id")["cache"].first())
    assert (caches["keep"], caches["drop"]) == ({"miss"}, {"hit"})
    fewer = prompts["keep"] - prompts["drop"]
    assert (fewer["prompt_tokens"] == fewer["clip_text_tokens"]).all()
    assert (fewer["clip_text_tokens"] >= 2 * (13 + 2)).all()
    assert set(prompts["keep"]["clip_text_tokens"]) == {4 * (13 + 2)}


def test_planning_counts_all_four_rows_of_a_token(places, tmp_path):
    content = recipe(places, [{"name": "full"}], model={"max_pixels": 1600, "min_pixels": 1600})
    _, run_dir = run(content, tmp_path)
    (cell,) = expect_tokens(plan_of(content, tmp_path / "elsewhere"), None, {}, {})
    (file, *_) = (tmp_path / "cache").glob("*-full-*/*.parquet")
    kept = answers_of(run_dir)["tokens_kept"].iloc[0]
    assert cell.kept == pytest.approx(kept, rel=0.3)
    written = file.stat().st_size / kept
    assert cell.clip_bytes / cell.kept == pytest.approx(written, rel=0.15)
    assert written > 3.5 * 64 * 4  # (1 + 3) rows of 64 float32 each


def test_sinks_are_found_on_it(places, tmp_path):
    content = recipe(places)
    options = SinkOptions(tmp_path / "sinks.json", "attention")
    places = Places(tmp_path / "page", str(tmp_path / "cache"))
    assert analyze_sinks(content, options, places, Console(file=io.StringIO())) == 0
    report = json.loads((tmp_path / "sinks.json").read_text())
    assert report["grid"] == [5, 5]


def test_times_of_a_bounded_clip_count_from_its_beginning(places, tmp_path):
    """As in the harnesses, which cut it out first: 0.1 seconds, not the longer 10.1 seconds."""
    write_clip(tmp_path / "long.mp4", 288)  # 12 s
    table = tmp_path / "questions.csv"
    table.write_text(
        "video,question,options,answer,start,end\nlong.mp4,What?,a|b,a,,\n"
        "long.mp4,What?,a|b,a,10,12\nlong.mp4,What?,a|b,a,2,4\n"
    )
    section = {"name": "custom", "root": str(table)}
    content = recipe(places, METHODS[:1], benchmark=section, limit=None)
    _, run_dir = run(content, tmp_path)
    answers = answers_of(run_dir).set_index("question_id")
    assert len(answers) == 3
    # Pairs of the whole file are shown at 0.8, 4.3, 7.7 and 11.1 seconds.
    assert sorted(answers["clip_text_tokens"]) == [4 * 15, 4 * 15, 4 * 15 + 1]
