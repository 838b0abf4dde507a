"""A job on LLaVA-Video: what decoding knows of a file reaches the question through the cache."""

from __future__ import annotations

import pytest
from jobs_for_tests import answers_of, job, run
from llava_originals import build_original, save_original

from tango_core import build_method, decode_frames, load_encoder, load_language_model
from tango_core.benchmarks import build_benchmark

HYBRID = {
    "name": "tango",
    "retention": 0.5,
    "inner": {"name": "fastv-merge", "layer": 2, "retention": 0.5},
}
NUM_CLIPS = 2


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Checkpoint with a pooling head, and the directory of the generated clips."""
    directory = tmp_path_factory.mktemp("checkpoint")
    save_original(build_original(head=True), directory)
    return str(directory), tmp_path_factory.mktemp("shapes")


@pytest.mark.parametrize("wording", ["vlmevalkit", "none"])
def test_a_job_says_what_the_two_halves_say_called_by_hand(places, tmp_path, wording):
    path, shapes = places
    model = {
        "name": "llava-video-7b",
        "path": path,
        "num_frames": 4,
        "time_instruction": wording,
    }
    recipe = job(shapes, model=model, methods=[HYBRID], limit=NUM_CLIPS, executor="local")
    _, run_dir = run(recipe, tmp_path)
    answers = answers_of(run_dir).set_index(["video_id", "question_id"])

    encoder = load_encoder("llava-video-7b", path, num_frames=4)
    language_model = load_language_model(
        "llava-video-7b", path, num_frames=4, time_instruction=wording
    )
    method = build_method(num_layers=4, **HYBRID)
    benchmark = build_benchmark("shapes", root=str(shapes))
    num_compared = 0
    for item in benchmark.items(NUM_CLIPS):
        frames = decode_frames(item.path, encoder.spec.frames, item.clip)
        features = encoder.encode(frames, method.compressor.needs)
        video = method.compressor.compress(features)
        prompts = [benchmark.protocol.render(question) for question in item.questions]
        said = language_model.answer(
            video, prompts, pruner=method.pruner, max_new_tokens=benchmark.protocol.max_new_tokens
        )
        if wording == "vlmevalkit":
            right = language_model.layout.tokenizer.decode(
                language_model.layout.lay_out(video, prompts[0]).question
            )
            assert f"seconds,and {frames.source.frame_height} frames are" in right
            assert frames.source.frame_height != encoder.spec.frames.size[0]
        for question, answer in zip(item.questions, said, strict=True):
            row = answers.loc[(item.video_id, question.id)]
            assert row["status"] in ("ok", "unparsed")
            assert row["text"] == answer.text
            assert row["prompt_tokens"] == answer.prompt_tokens
            assert row["tokens_kept"] == video.num_kept
            layout = language_model.layout.lay_out(video, prompts[0])
            assert row["tokens_with_newlines"] == layout.num_visual > video.num_kept
            num_compared += 1
    assert num_compared == len(answers) > NUM_CLIPS
