"""A job on Qwen2.5-VL: real files, frames in the clip's own shape, tokens through the cache."""

from __future__ import annotations

import pytest
from jobs_for_tests import answers_of, job, run
from qwen_checkpoints import build_qwen, save_qwen

from jobs.report.compare import report_runs
from tango_core import build_method, decode_frames, load_encoder, load_language_model
from tango_core.benchmarks import build_benchmark

HYBRID = {
    "name": "tango",
    "retention": 0.5,
    "inner": {"name": "fastv-merge", "layer": 2, "retention": 0.5},
}
OPTIONS = {"num_frames": 5, "max_pixels": 2000}
NUM_CLIPS = 2


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Checkpoint, and the directory of the generated clips."""
    path = save_qwen(build_qwen(), tmp_path_factory.mktemp("checkpoint"))
    return str(path), tmp_path_factory.mktemp("shapes")


def test_a_job_says_what_the_two_halves_say_called_by_hand(places, tmp_path):
    path, shapes = places
    recipe = job(
        shapes,
        model={"name": "qwen2.5-vl-7b", "path": path, **OPTIONS},
        methods=[HYBRID],
        limit=NUM_CLIPS,
        executor="local",
    )
    _, run_dir = run(recipe, tmp_path)
    answers = answers_of(run_dir).set_index(["video_id", "question_id"])

    encoder = load_encoder("qwen2.5-vl-7b", path, **OPTIONS)
    language_model = load_language_model("qwen2.5-vl-7b", path, **OPTIONS)
    method = build_method(num_layers=4, **HYBRID)
    benchmark = build_benchmark("shapes", root=str(shapes))
    num_compared = 0
    for item in benchmark.items(NUM_CLIPS):
        frames = decode_frames(item.path, encoder.spec.frames, item.clip)
        assert frames.pixels.shape == (4, 40, 40, 3)  # an even number, at most 2000 pixels
        features = encoder.encode(frames, method.compressor.needs)
        assert (len(features.tokens), features.grid) == (2, (5, 5))
        video = method.compressor.compress(features)
        said = language_model.answer(
            video,
            [benchmark.protocol.render(question) for question in item.questions],
            pruner=method.pruner,
            max_new_tokens=benchmark.protocol.max_new_tokens,
        )
        for question, answer in zip(item.questions, said, strict=True):
            row = answers.loc[(item.video_id, question.id)]
            assert row["status"] in ("ok", "unparsed")
            assert row["text"] == answer.text
            assert row["prompt_tokens"] == answer.prompt_tokens
            assert row["tokens_kept"] == video.num_kept < row["tokens_total"] == 50
            assert row["tokens_with_newlines"] == row["tokens_kept"]  # this family has none
            num_compared += 1
    assert num_compared == len(answers) > NUM_CLIPS


def test_another_rule_of_positions_finds_the_tokens_in_the_cache(places, tmp_path):
    path, shapes = places
    for rule, misses in (("hf450", NUM_CLIPS), ("hf5", 0)):
        recipe = job(
            shapes,
            model={"name": "qwen2.5-vl-7b", "path": path, "position_rule": rule, **OPTIONS},
            methods=[{"name": "tango", "retention": 0.5}],
            limit=NUM_CLIPS,
            executor="local",
        )
        _, run_dir = run(recipe, tmp_path)
        cached = answers_of(run_dir).groupby("video_id")["cache"].first()
        assert (cached == "miss").sum() == misses


def test_the_protocol_decides_which_frames_a_job_shows(places, tmp_path):
    """Two frames per second of 8 s, thinned to five: three pairs; VLMEvalKit takes two pairs."""
    path, shapes = places
    for protocol, total in (("vlmevalkit", 50), ("lmms_eval", 75)):
        recipe = job(
            shapes,
            benchmark={"name": "shapes", "root": str(shapes), "protocol": protocol},
            model={"name": "qwen2.5-vl-7b", "path": path, **OPTIONS},
            methods=[{"name": "tango", "retention": 0.5}],
            limit=1,
            executor="local",
        )
        _, run_dir = run(recipe, tmp_path)
        answers = answers_of(run_dir)
        assert set(answers["cache"]) == {"miss"}
        assert set(answers["tokens_total"]) == {total}


def test_a_run_with_fewer_pixels_is_a_control_of_a_run_with_more(places, tmp_path):
    """24 x 24 pixels of 40 x 40: 9 of 25 tokens per pair of frames."""
    path, shapes = places
    runs = []
    for pixels, method in (
        (2000, {"name": "topk", "retention": 0.36}),
        (600, {"name": "full"}),
    ):
        recipe = job(
            shapes,
            model={"name": "qwen2.5-vl-7b", "path": path, "num_frames": 5, "max_pixels": pixels},
            methods=[method],
            limit=NUM_CLIPS,
            executor="local",
        )
        runs.append(run(recipe, tmp_path)[1])
    assert [set(answers_of(run_dir)["tokens_total"]) for run_dir in runs] == [{50}, {18}]
    page = report_runs(runs, tmp_path / "together").read_text(encoding="utf-8")
    assert "At 36 % with max_pixels=2000 the best control is full max_pixels=600 (" in page.replace(
        "&nbsp;", " "
    )
    paper = (tmp_path / "together" / "paper_table.md").read_text(encoding="utf-8")
    for pixels in (2000, 600):
        assert f"qwen2.5-vl-7b, max_pixels={pixels}" in paper
    assert all(
        f"-max_pixels{n}-" in run_dir.name for n, run_dir in zip((2000, 600), runs, strict=True)
    )
