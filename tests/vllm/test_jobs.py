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
