"""Jobs on small checkpoints of every model family, from files to answers."""

from __future__ import annotations

import pytest
from jobs_for_tests import answers_of, job, run, what_was_said
from llava_originals import build_original, save_original
from numbered_videos import write_clip
from small_families import SMALL_FAMILIES

from jobs.report.compare import compared_runs, report_runs
from jobs.report.tables.cells import control_sentences
from jobs.results.comparisons import against_controls
from tango_core import build_method, decode_frames, load_encoder, load_language_model
from tango_core.benchmarks import build_benchmark

NUM_CLIPS = 2
TANGO = {"name": "tango", "retention": 0.5}
HYBRID = {**TANGO, "inner": {"name": "fastv-merge", "layer": 2, "retention": 0.5}}
TWO = [{"name": "tango", "retention": 0.2}, {"name": "fastv", "retention": 0.7, "layer": 2}]
LLAVA_VIDEO = "llava-video-7b"
QWEN3 = {"num_frames": 8, "max_pixels": 2000, "min_pixels": 64}


def small(name, layout="saved"):
    """Name of a model, writer of a small checkpoint of it, and layers of its language model."""
    one = SMALL_FAMILIES[name]
    return name, lambda folder: one.save(one.build(), folder, layout), one.num_layers


# Checkpoint -> model, writer and layers; options; methods.
CHECKPOINTS = {
    "llava-video": (
        (LLAVA_VIDEO, lambda folder: save_original(build_original(head=True), folder), 4),
        {"num_frames": 4},
        [HYBRID],
    ),
    "qwen": (small("qwen2.5-vl-7b"), {"num_frames": 5, "max_pixels": 2000}, [HYBRID]),
    "qwen3": (small("qwen3-vl-8b"), QWEN3, TWO),
    "qwen3.5": (small("qwen3.5-9b"), QWEN3, [TWO[0], {**TWO[1], "layer": 4}]),
    **{
        f"internvl-{layout}": (
            small("internvl3.5-8b", layout),
            {"num_frames": 5},
            [TWO[0], {"name": "visionzip", "retention": 0.3, "contextual_ratio": 0.1}],
        )
        for layout in ("saved", "chat")
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(name)`: directory of a checkpoint; `made.shapes`: that of the generated clips."""
    folder = tmp_path_factory.mktemp("families")

    def path_of(name):
        path = folder / name
        if not path.exists():
            path.mkdir()
            CHECKPOINTS[name][0][1](path)
        return str(path)

    path_of.shapes = folder / "shapes"
    return path_of


def recipe_of(made, name, methods=None, **changes):
    (family, *_), options, usual = CHECKPOINTS[name]
    model = {"name": family, "path": made(name), **options, **changes.pop("model", {})}
    own = {"limit": NUM_CLIPS, "executor": "local", **changes}
    return job(made.shapes, model=model, methods=methods or usual, **own)


# What a family adds to the contract: tokens of a clip, those of its text.
@pytest.mark.parametrize(
    ("name", "options", "total", "text"),
    [
        ("llava-video", {"time_instruction": "vlmevalkit"}, None, None),
        ("llava-video", {"time_instruction": "none"}, None, None),
        ("qwen", {}, 50, None),
        ("qwen3", {}, 100, 4 * (13 + 2)),
        ("qwen3.5", {}, 100, 4 * (13 + 2)),
        ("internvl-saved", {}, 80, None),
        ("internvl-chat", {}, 80, None),
    ],
)
def test_a_job_equals_direct_calls_of_encoder_and_language_model(
    made, tmp_path, name, options, total, text
):
    (family, _, num_layers), usual, _ = CHECKPOINTS[name]
    recipe = recipe_of(made, name, model=options)
    outcome, run_dir = run(recipe, tmp_path)
    assert (outcome.num_clips, outcome.num_failed_clips) == (NUM_CLIPS, 0)
    answers = answers_of(run_dir).set_index(["cell", "video_id", "question_id"])
    assert set(answers["status"]) <= {"ok", "unparsed"}
    encoder = load_encoder(family, made(name), **usual)
    language_model = load_language_model(family, made(name), **usual, **options)
    benchmark = build_benchmark("shapes", root=str(made.shapes))
    num_compared = 0
    for cell, settings in recipe.all_methods:
        method = build_method(num_layers=num_layers, model=family, **settings)
        for item in benchmark.items(NUM_CLIPS):
            frames = decode_frames(item.path, encoder.spec.frames, item.clip)
            features = encoder.encode(frames, method.compressor.needs)
            video = method.compressor.compress(features)
            prompts = [benchmark.protocol.render(question) for question in item.questions]
            replies = language_model.answer(
                video,
                prompts,
                pruner=method.pruner,
                positions=method.compressor.positions,
                max_new_tokens=benchmark.protocol.max_new_tokens,
            )
            layout = language_model.layout.lay_out(video, prompts[0])
            if options.get("time_instruction") == "vlmevalkit":
                words = language_model.layout.tokenizer.decode(layout.question)
                assert f"seconds,and {frames.source.frame_height} frames are" in words
            for question, reply in zip(item.questions, replies, strict=True):
                row = answers.loc[(cell, item.video_id, question.id)]
                assert row["text"] == reply.text
                assert row["prompt_tokens"] == reply.prompt_tokens
                assert row["tokens_kept"] == video.num_kept <= row["tokens_total"]
                assert row["tokens_total"] == (total or features.tokens[..., 0].numel())
                assert row["tokens_with_newlines"] == layout.num_visual
                assert (layout.num_visual > video.num_kept) == (family == LLAVA_VIDEO)
                if text:
                    assert row["clip_text_tokens"] == reply.clip_text_tokens == text
                num_compared += 1
    assert num_compared == len(answers) > NUM_CLIPS


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("qwen", "position_rule", ("hf450", "hf5")),
        ("qwen3", "empty_blocks", ("keep", "drop")),
        ("internvl-saved", "frame_label", ("vlmevalkit", "lmms_eval")),
    ],
)
def test_prompt_settings_change_the_prompt_but_not_the_cached_tokens(
    made, tmp_path, name, option, values
):
    """Of a hundredth of the tokens most blocks of frames keep none."""
    methods, prompts = [{"name": "topk", "retention": 0.02, "score": "attention"}], []
    for value, misses in zip(values, (NUM_CLIPS, 0), strict=True):
        _, run_dir = run(recipe_of(made, name, methods, model={option: value}), tmp_path)
        answers = answers_of(run_dir)
        assert (answers.groupby("video_id")["cache"].first() == "miss").sum() == misses
        prompts.append(answers["prompt_tokens"])
    assert name == "qwen" or (prompts[0] != prompts[1]).all(), "other positions, or other tokens"


def test_the_protocol_selects_the_frames(made, tmp_path):
    """Two frames per second of 8 s, thinned to five: three pairs; VLMEvalKit takes two pairs."""
    for protocol, total in (("vlmevalkit", 50), ("lmms_eval", 75)):
        section = {"name": "shapes", "root": str(made.shapes), "protocol": protocol}
        _, run_dir = run(recipe_of(made, "qwen", [TANGO], benchmark=section, limit=1), tmp_path)
        answers = answers_of(run_dir)
        assert set(answers["cache"]) == {"miss"}
        assert set(answers["tokens_total"]) == {total}


def test_a_run_with_fewer_pixels_is_a_control(made, tmp_path):
    """24 x 24 pixels of 40 x 40: 9 of 25 tokens per pair of frames."""
    runs = [
        run(recipe_of(made, "qwen", [method], model={"max_pixels": pixels}), tmp_path)[1]
        for pixels, method in ((2000, {"name": "topk", "retention": 0.36}), (600, {"name": "full"}))
    ]
    assert [set(answers_of(run_dir)["tokens_total"]) for run_dir in runs] == [{50}, {18}]
    page = report_runs(runs, tmp_path / "together").read_text(encoding="utf-8")
    assert "Methods are not ranked" in page  # random weights name no option
    found = compared_runs(runs)
    notes = " ".join(control_sentences(against_controls(found.cells, found.answers)))
    best = "At 36 % with max_pixels=2000 the best control is full max_pixels=600 ("
    assert best in notes.replace("\u00a0", " ")
    paper = (tmp_path / "together" / "paper_table.md").read_text(encoding="utf-8")
    for pixels, run_dir in zip((2000, 600), runs, strict=True):
        assert f"qwen2.5-vl-7b, max_pixels={pixels}" in paper
        assert f"-max_pixels{pixels}-" in run_dir.name


@pytest.mark.parametrize("companions", ["merge", "anchor"])
def test_stored_features_and_plans_give_the_same_answers(made, tmp_path, companions):
    replies = []
    for features, place in (("none", "tokens"), ("all", "plans"), ("all", "plans")):
        cache, model = {"features": features}, {"companions": companions}
        _, run_dir = run(
            recipe_of(made, "qwen3", TWO[:1], model=model, cache=cache), tmp_path / place
        )
        replies.append(what_was_said(run_dir))
    for other in replies[1:]:
        assert other.equals(replies[0])


def test_times_of_a_bounded_clip_start_at_its_beginning(made, tmp_path):
    """As in the harnesses, which cut it out first: 0.1 seconds, not the longer 10.1 seconds."""
    write_clip(tmp_path / "long.mp4", 288)  # 12 s
    table = tmp_path / "questions.csv"
    table.write_text(
        "video,question,options,answer,start,end\nlong.mp4,What?,a|b,a,,\n"
        "long.mp4,What?,a|b,a,10,12\nlong.mp4,What?,a|b,a,2,4\n"
    )
    section = {"name": "custom", "root": str(table)}
    recipe = recipe_of(made, "qwen3", TWO[:1], benchmark=section, limit=None)
    answers = answers_of(run(recipe, tmp_path)[1])
    assert len(answers) == 3
    # Pairs of the whole file are shown at 0.8, 4.3, 7.7 and 11.1 seconds.
    assert sorted(answers["clip_text_tokens"]) == [4 * 15, 4 * 15, 4 * 15 + 1]
