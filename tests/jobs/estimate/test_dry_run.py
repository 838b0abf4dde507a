"""What `--dry-run` promises, against what the job then did; memory, work and time of a job."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import releases
import torch
from jobs_for_tests import job, run
from numbered_videos import write_clip
from summaries import read_answers

from jobs.config.recipe import parse_job
from jobs.estimate import work
from jobs.run.dry_run import encoder_memory, estimate_job, language_memory
from jobs.run.locations import Locations
from pipeline.clips import Pools
from pipeline.resources.pools import ActorPool
from tango_core.models import describe_model, load_encoder, load_language_model

METHODS = [
    {"name": "full"},
    {"name": "topk", "retention": 0.1},
    {"name": "tango", "retention": 0.1},
]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Where the clips are generated, once."""
    return tmp_path_factory.mktemp("shapes")


@pytest.fixture
def recipe(shapes):
    """`recipe(**changes)`: a sweep over five clips in a loop."""

    def make(**changes):
        changes = {"methods": METHODS, "limit": 5, "executor": "local", **changes}
        return job(shapes, model={"name": "tiny", "num_frames": 8}, **changes)

    return make


def estimate(one, output, *, kind="sweep", cache=None, **how):
    """The JSON of a dry run."""
    found = estimate_job(one, kind, Locations(output, cache), **how)
    return json.loads(json.dumps(found))


def written_bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def test_the_job_does_what_was_promised(recipe, tmp_path):
    before = estimate(recipe(), tmp_path)
    assert not list(tmp_path.iterdir())
    _, folder = run(recipe(), tmp_path)
    answers = read_answers(folder)
    counts = before["counts"]
    assert (counts["clips"], counts["to_encode"], counts["cached"]) == (5, 5, 0)
    assert (counts["questions"], counts["answers"]) == (len(answers) // 3, len(answers))
    kept = answers.groupby("cell")["tokens_kept"].mean()
    prompts = answers.groupby("cell")["prompt_tokens"]
    for promised in before["methods"]:
        name = promised["name"]
        # Exact where the number of tokens does not depend on the clip.
        near = 0.1 if name.startswith("tango") else 0
        assert promised["kept"] == pytest.approx(kept[name], rel=near)
        assert promised["prompt"] == pytest.approx(prompts.mean()[name], rel=near)
        assert promised["longest"] == pytest.approx(prompts.max()[name], rel=near)
    assert before["prompt_tokens"] == pytest.approx(answers["prompt_tokens"].sum(), rel=0.02)
    assert before["cache_bytes"] == pytest.approx(written_bytes(tmp_path / "cache"), rel=0.02)
    assert before["time"]["unknown"] == ["decode", "compress", "answer"]

    again = estimate(recipe(), tmp_path, price_per_hour=2)
    assert (again["counts"]["to_encode"], again["counts"]["cached"]) == (0, 5)
    assert again["cache_bytes"] == 0
    assert again["measured_in"] == [folder.name]
    assert again["time"]["bottleneck"] == "answer"
    assert again["time"]["cost"] == pytest.approx(again["time"]["wall_s"] / 1800)

    other = str(tmp_path / "other")
    elsewhere = estimate(recipe(limit=4), tmp_path, cache=other)
    assert elsewhere["counts"]["to_encode"] == 4
    stages = {stage["name"] for stage in elsewhere["time"]["stages"]}
    assert stages == {"decode", "compress", "answer"}
    filling = estimate(recipe(), tmp_path, cache=other, kind="precompute")
    assert (filling["counts"]["answers"], filling["prompt_tokens"]) == (0, 0)
    assert "answer" not in filling["actor_bytes"]


@pytest.mark.parametrize(
    ("features", "dtype"), [("all", "auto"), ("tokens", "auto"), ("all", "int8")]
)
def test_a_job_with_a_feature_store_writes_what_was_promised(recipe, tmp_path, features, dtype):
    cache = {"features": features, "feature_dtype": dtype}
    one = recipe(cache=cache, methods=METHODS[1:2])
    before = estimate(one, tmp_path, kind="precompute")
    run(one, tmp_path, kind="precompute")
    folders = {path.parent for path in (tmp_path / "cache").rglob("*.parquet")}
    of_features = sum(written_bytes(one) for one in folders if "-features-" in one.name)
    of_plans = sum(written_bytes(one) for one in folders if "-features-" not in one.name)
    assert before["feature_bytes"] == pytest.approx(of_features, rel=0.02)
    assert before["cache_bytes"] == pytest.approx(of_plans, rel=0.1)
    assert of_plans < of_features / 5

    again = estimate(recipe(cache=cache), tmp_path)
    assert (again["counts"]["to_encode"], again["counts"]["from_features"]) == (
        (0, 5) if features == "all" else (5, 0)  # the method that is new reads a signal
    )
    assert ("decode" in again["time"]["unknown"]) == (features == "tokens")
    assert again["feature_bytes"] == 0


def test_a_probe_measures_and_leaves_nothing(recipe, tmp_path):
    found = estimate(recipe(limit=2), tmp_path, probe=True)
    assert found["measured_in"] == ["a probe of 2 clips"]
    assert found["time"]["wall_s"] > 0
    assert not list(tmp_path.iterdir())


def test_a_dry_run_generates_no_clip_and_counts_those_that_are_missing(recipe, tmp_path):
    root = tmp_path / "clips"
    section = {"name": "shapes", "root": str(root)}
    before = estimate(recipe(limit=3, benchmark=section), tmp_path)
    assert not list(tmp_path.iterdir())
    run(recipe(limit=2, benchmark=section), tmp_path)
    after = estimate(recipe(limit=3, benchmark=section), tmp_path)
    assert len(list(root.rglob("*.mp4"))) == 2
    assert (before["counts"]["to_encode"], before["counts"]["cached"]) == (3, 0)
    assert (after["counts"]["to_encode"], after["counts"]["cached"]) == (1, 2)
    for name in ("clips", "without_file", "questions", "answers"):
        assert before["counts"][name] == after["counts"][name]
    assert before["counts"]["without_file"] == 0


def test_only_comparable_runs_are_used(recipe, tmp_path):
    _, folder = run(recipe(limit=1), tmp_path)
    assert estimate(recipe(), tmp_path)["measured_in"] == [folder.name]
    facts = json.loads((folder / "facts.json").read_text())
    for change in (
        {"device": "NVIDIA H200"},
        {"mode": "profile"},
        {"kind": "import"},
        {"num_frames": 4},
    ):
        (folder / "facts.json").write_text(json.dumps({**facts, **change}))
        assert not estimate(recipe(), tmp_path)["measured_in"]
    (folder / "facts.json").write_text("{")
    assert not estimate(recipe(), tmp_path)["measured_in"]


def test_the_table_names_what_is_unknown_and_pools_that_fit(tango, recipe, tmp_path):
    (tmp_path / "recipe.yaml").write_text(recipe(limit=1, executor="ray", pools="auto").to_yaml())
    code, out, err = tango("sweep", "recipe.yaml", "--dry-run")
    assert code == 0, err
    assert "no earlier run measured decode, compress, answer" in out
    assert "pools:    {decode: {num_cpus: 1}" in out
    assert "per answer actor (weights" in out
    assert not (tmp_path / "runs").exists()


TAG = '<font color="white" size=".72c">{}</font>'


def promised(name, root, tmp_path, **options):
    """Tokens of the mean prompt and number of answers that a job with one method would give."""
    for item in releases.load(name, root).items():
        (root / item.path).parent.mkdir(parents=True, exist_ok=True)
        if not (root / item.path).exists():
            write_clip(root / item.path, 12)
    recipe = {
        "benchmark": {"name": name, "root": str(root), **options},
        "model": {"name": "tiny", "num_frames": 4},
        "method": {"name": "full"},
        "executor": "local",
    }
    job = parse_job(recipe, "test")
    found = estimate_job(job, "evaluate", Locations(tmp_path / "out"))
    return found["methods"][0]["prompt"], found["counts"]["answers"]


def test_subtitles_are_counted(tmp_path):
    root = releases.videomme_release(tmp_path / "root")
    (root / "subtitle").mkdir()
    words = TAG.format("one two three four five six seven eight nine ten")
    cue = f"1\n00:00:00,000 --> 00:00:09,000\n{words}\n\n"
    (root / "subtitle" / "aAaAaAaAaA0.srt").write_text(cue)
    plain, _ = promised("videomme", root, tmp_path)
    shown, count = promised("videomme", root, tmp_path, subtitles=True)
    assert shown > plain + 10
    assert count == 4


ONE = {"longest": 100, "reply": 1, "batch_tokens": 1}


@pytest.fixture(scope="module")
def tiny():
    return describe_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def language(tiny):
    return load_language_model(tiny)


def loaded_bytes(*modules):
    tensors = {id(t): t for m in modules for t in (*m.parameters(), *m.buffers())}.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_weights_are_those_that_an_actor_loads(tiny, language):
    encoder = load_encoder(tiny)
    found = encoder_memory(load_encoder(tiny, device="meta"), "cpu")
    assert found.weights == loaded_bytes(encoder.model, encoder.pooling_head)
    model = load_language_model(tiny, device="meta").engine.model
    found = language_memory(model, tiny, "cpu", **ONE)
    assert found.weights == loaded_bytes(language.engine.model)


def test_without_a_checkpoint_the_weights_follow_from_the_shape(tiny):
    model = load_language_model(tiny, device="meta").engine.model
    exact = language_memory(model, tiny, "cpu", **ONE).weights
    assert language_memory(None, tiny, "cpu", **ONE).weights == pytest.approx(exact, rel=0.05)


def test_keys_and_values_are_those_of_a_cache_of_that_length(tiny):
    from transformers import DynamicCache

    cache = DynamicCache()
    shape = (1, tiny.llm.num_kv_heads, 100, tiny.llm.head_dim)
    for layer in range(tiny.llm.num_layers):
        cache.update(torch.zeros(shape), torch.zeros(shape), layer)
    held = sum(t.numel() * t.element_size() for one in cache.layers for t in (one.keys, one.values))
    asked = {"longest": 98, "reply": 2, "batch_tokens": 1}
    assert language_memory(None, tiny, "cpu", **asked).kv == held
    # Of nine questions about a clip eight are answered at once, beside what they share.
    asked = {**asked, "together": 9, "prompts": 9}
    assert language_memory(None, tiny, "cpu", **asked).kv == (8 + 1) * held


COUNTS = work.Counts(100, 0, 40, 60, 300, 600, {"one": 40, "two": 10})
CELLS = tuple(
    work.CellTokens(name, cache, 50, 100, prompt, 120, 1000.0)
    for name, cache, prompt in (("a", "one", 100.0), ("b", "two", 200.0))
)


def rates(**cells):
    columns = ["compress_s", "answer_s", "prompt_tokens"]
    made = {name: (0.5, *measured) for name, measured in cells.items()}
    return work.Rates(0.2, 1.0, pd.DataFrame.from_dict(made, "index", columns=columns), ("run",))


def test_only_what_is_missing_is_done_and_everything_is_answered():
    seconds = work.stage_seconds(COUNTS, CELLS, rates(a=(2.0, 100), b=(3.0, 200)))
    assert seconds == {
        "decode": pytest.approx(0.2 * 40),
        "compress": pytest.approx(1.0 * 40 + 0.5 * 40 + 0.5 * 10),
        "answer": pytest.approx(100 * 2.0 + 100 * 3.0),
    }
    # A method that was never measured is scaled by its tokens.
    seconds = work.stage_seconds(COUNTS, CELLS, known := rates(a=(2.0, 100)))
    assert seconds["answer"] == pytest.approx(100 * 2.0 + 100 * 2.0 * 200 / 100)
    stored = replace(COUNTS, to_encode=0, from_features=40)
    found = work.stage_seconds(stored, CELLS, known)
    assert found.keys() == {"compress", "answer"}
    assert found["compress"] == pytest.approx(seconds["compress"] - 40 * known.encode_s)
    assert work.stage_seconds(stored, CELLS, replace(known, encode_s=None)) == found


def test_what_was_never_measured_is_not_known():
    seconds = work.stage_seconds(COUNTS, CELLS, work.Rates())
    timing = work.time_job(seconds, None, 8, price_per_hour=3.6)
    assert timing["unknown"] == ["decode", "compress", "answer"]
    assert (timing["wall_s"], timing["bottleneck"], timing["cost"]) == (None, None, None)


BUSY = {"decode": 60, "compress": 60, "answer": 80}
SOME = Pools(compress=ActorPool(num_cpus=1), answer=ActorPool((2, 10), num_cpus=0.5))
GPUS = Pools(compress=ActorPool(num_gpus=0.5), answer=ActorPool(num_gpus=0.5))


@pytest.mark.parametrize(
    ("seconds", "pools", "cpus", "wall_s", "bottleneck"),
    [
        # A loop decodes beside the other stages, which add up; one CPU does one thing at a time.
        ({"decode": 8, "compress": 20, "answer": 500}, None, 8, 520, "answer"),
        ({"decode": 800, "compress": 20, "answer": 500}, None, 8, 800, "decode"),
        ({"decode": 8, "compress": 20, "answer": 500}, None, 1, 528, "answer"),
        # On Ray the slowest stage counts; decode has the two CPUs that actors do not reserve.
        ({"decode": 600, "compress": 65, "answer": 500}, SOME, 8, 300, "decode"),
        # Workers that share CPUs are as fast as the CPUs.
        (BUSY, Pools(), 2, 100, "answer"),
        (BUSY, Pools(), 64, 80, "answer"),
        (BUSY, GPUS, 1, 80, "answer"),
    ],
)
def test_the_time_on_the_clock_follows_from_workers_and_cpus(
    seconds, pools, cpus, wall_s, bottleneck
):
    timing = work.time_job(seconds, pools, cpus, price_per_hour=3.6)
    start = work.LOOP_START_S if pools is None else work.RAY_START_S
    assert timing["wall_s"] == pytest.approx(wall_s + start)
    assert timing["bottleneck"] == bottleneck
    assert timing["cost"] == pytest.approx(timing["wall_s"] / 1000)
