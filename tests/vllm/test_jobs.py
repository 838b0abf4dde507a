"""A job with `engine: vllm` gives the answers of the same job with `engine: native`."""

import pytest
from jobs_for_tests import answers_of, job, run

METHODS = [
    {"name": "full"},
    {"name": "tango", "retention": 0.1},
    {"name": "uniform", "retention": [0.1, 0.3]},
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run directories by engine, of one cache."""
    place = tmp_path_factory.mktemp("jobs")
    found = {}
    for engine in ("native", "vllm"):
        recipe = job(
            place / "shapes", methods=METHODS, limit=40, executor="local", engine=engine,
            model={"name": "tiny", "device": "cpu"},
        )  # fmt: skip
        found[engine] = run(recipe, place)[1]
    return found


def test_shapes_is_answered_equally_question_by_question(runs):
    native, vllm = (answers_of(runs[engine]) for engine in ("native", "vllm"))
    assert len(native) > 600
    same = ["benchmark", "video_id", "cell", "question_id", "status", "text", "correct", "score"]
    same += ["prompt_tokens", "new_tokens", "tokens_kept", "kept_digest", "prompt_digest"]
    for name in same:
        assert (native[name] == vllm[name]).all() or (name == "score" and native[name].isna().all())
    print(f"shapes: {len(vllm)} of {len(native)} answers equal, {vllm['correct'].mean():.1%} right")
    assert (vllm["cache"] == "hit").all()
    for name in ("prefill_ms", "ttft_ms", "decode_ms"):
        assert (vllm[name] > 0).all()


def test_a_failed_request_is_a_row_and_the_run_can_be_resumed(runs, tmp_path):
    native = answers_of(runs["native"])
    settings = {
        "methods": METHODS, "limit": 4, "executor": "local", "engine": "vllm",
        "model": {"name": "tiny", "device": "cpu"},
    }  # fmt: skip
    shapes = runs["native"].parent / "shapes"
    # `full` has 512 tokens of the clip alone.
    recipe = job(shapes, **settings, answer={"batch_tokens": 512})
    _, run_dir = run(recipe, tmp_path)
    first = answers_of(run_dir)
    failed = first["cell"] == "full"
    assert (first["status"] == failed.map({True: "answer_failed", False: "ok"})).all()
    assert first[failed]["error"].str.contains("the engine holds").all()
    run(recipe, tmp_path, run_dir)
    second = answers_of(run_dir)
    assert (second["status"] == first["status"]).all()
    keys = ["video_id", "cell", "question_id"]
    both = second[~failed].merge(native, on=keys, suffixes=("", "_native"))
    assert len(both) == sum(~failed)
    assert (both["text"] == both["text_native"]).all()


def test_workers_of_ray_hold_the_engine(runs, local_ray, tmp_path):
    recipe = job(
        runs["native"].parent / "shapes", methods=METHODS, limit=4, executor="ray", engine="vllm",
        model={"name": "tiny", "device": "cpu"},
    )  # fmt: skip
    _, run_dir = run(recipe, tmp_path)
    found, native = answers_of(run_dir), answers_of(runs["native"])
    both = found.merge(native, on=["video_id", "cell", "question_id"], suffixes=("", "_native"))
    assert len(both) == len(found) > 0
    for name in ("text", "status", "prompt_tokens", "new_tokens", "kept_digest"):
        assert (both[name] == both[f"{name}_native"]).all()
