"""Jobs on InternVL from both layouts of a checkpoint: real files, text between frames, cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from internvl_checkpoints import GRID, NAME, NUM_LAYERS, SIZE, build_internvl, save_internvl
from jobs_for_tests import answers_of, job, run
from numbered_videos import write_clip
from releases import longvideobench_release

from jobs.config.recipe import parse_job
from tango_core import build_method, decode_frames, load_encoder, load_language_model
from tango_core.benchmarks import build_benchmark

NUM_FRAMES, NUM_CLIPS = 5, 2
METHODS = [
    {"name": "tango", "retention": 0.2},
    {"name": "visionzip", "retention": 0.3, "contextual_ratio": 0.1},
]


@pytest.fixture(scope="module")
def stock():
    return build_internvl()


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


@pytest.mark.parametrize("layout", ["saved", "chat"])
def test_a_job_says_what_the_two_halves_say_called_by_hand(stock, shapes, tmp_path, layout):
    path = str(save_internvl(stock, tmp_path / "checkpoint", layout))
    recipe = job(
        shapes,
        model={"name": NAME, "path": path, "num_frames": NUM_FRAMES},
        methods=METHODS,
        limit=NUM_CLIPS,
        executor="local",
    )
    outcome, run_dir = run(recipe, tmp_path)
    assert (outcome.num_clips, outcome.num_failed_clips) == (NUM_CLIPS, 0)
    answers = answers_of(run_dir)
    assert set(answers["status"]) <= {"ok", "unparsed"}
    answers = answers.set_index(["cell", "video_id", "question_id"])

    encoder = load_encoder(NAME, path, num_frames=NUM_FRAMES)
    language_model = load_language_model(NAME, path, num_frames=NUM_FRAMES)
    benchmark = build_benchmark("shapes", root=str(shapes))
    num_compared = 0
    for cell, options in recipe.all_methods:
        method = build_method(num_layers=NUM_LAYERS, **options)
        for item in benchmark.items(NUM_CLIPS):
            frames = decode_frames(item.path, encoder.spec.frames, item.clip)
            assert frames.pixels.shape == (NUM_FRAMES, SIZE, SIZE, 3)
            features = encoder.encode(frames, method.compressor.needs)
            assert features.grid == GRID
            video = method.compressor.compress(features)
            said = language_model.answer(
                video,
                [benchmark.protocol.render(question) for question in item.questions],
                positions=method.compressor.positions,
                max_new_tokens=benchmark.protocol.max_new_tokens,
            )
            for question, answer in zip(item.questions, said, strict=True):
                row = answers.loc[(cell, item.video_id, question.id)]
                assert row["text"] == answer.text
                assert row["prompt_tokens"] == answer.prompt_tokens
                assert row["tokens_kept"] == video.num_kept < row["tokens_total"] == 80
                num_compared += 1
    assert num_compared == len(answers) > NUM_CLIPS


def test_labels_of_frames_are_no_part_of_cached_tokens(stock, shapes, tmp_path):
    path = str(save_internvl(stock, tmp_path / "checkpoint"))
    for label, misses in (("vlmevalkit", NUM_CLIPS), ("lmms_eval", 0)):
        recipe = job(
            shapes,
            model={
                "name": NAME,
                "path": path,
                "num_frames": NUM_FRAMES,
                "frame_label": label,
            },
            methods=METHODS[:1],
            limit=NUM_CLIPS,
            executor="local",
        )
        _, run_dir = run(recipe, tmp_path)
        cached = answers_of(run_dir).groupby("video_id")["cache"].first()
        assert (cached == "miss").sum() == misses


def test_subtitles_of_longvideobench_stand_behind_the_frames(stock, tmp_path):
    """Of the words that are spoken those at the frames shown; no token changes."""
    path = str(save_internvl(stock, tmp_path / "checkpoint"))
    root = longvideobench_release(tmp_path / "root")
    (root / "subtitles").mkdir()
    words = [{"timestamp": [at, at + 0.6], "text": f"word {at}"} for at in (0.0, 0.3, 1.2)]
    (root / "subtitles" / "long-_1_en.json").write_text(json.dumps(words))
    for item in build_benchmark("longvideobench", root=str(root)).items():
        Path(item.path).parent.mkdir(exist_ok=True)
        write_clip(Path(item.path), 48)
    answers = []
    for subtitles in (False, True):
        recipe = {
            "benchmark": {"name": "longvideobench", "root": str(root), "subtitles": subtitles},
            "model": {"name": NAME, "path": path, "num_frames": NUM_FRAMES},
            "methods": METHODS[:1],
            "executor": "local",
        }
        outcome, run_dir = run(parse_job(recipe, "test"), tmp_path / "out")
        assert outcome.num_failed_clips == 0
        answers.append(answers_of(run_dir).set_index("question_id"))
    plain, shown = answers
    assert shown["tokens_kept"].equals(plain["tokens_kept"])
    assert shown["frames_digest"].equals(plain["frames_digest"])
    # Frames at 8, 16, 24, 32 and 40 of 48, 24 a second: 0.33, 0.67, 1.0, 1.33 and 1.67 s. A token
    # is a byte, of words as of marks.
    behind = "word 0.0\n<Frame-1>word 0.3\n<Frame-2><Frame-3><Frame-4>word 1.2\n<Frame-5>"
    more = (shown["prompt_tokens"] - plain["prompt_tokens"]).to_dict()
    assert more == {"long-_1_0": len(behind), "long-_1_1": len(behind), "short_2_0": 0}
