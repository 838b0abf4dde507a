"""Every analysis of an encoder on Qwen3-VL and on InternVL, from a recipe to its tables."""

from __future__ import annotations

import csv
import io
import json
import math
from functools import partial

import pytest
from jobs_for_tests import answers_of, job, run
from rich.console import Console
from small_families import SMALL_FAMILIES

from jobs.analysis.encoders import analyze_activations, analyze_attention, analyze_sinks
from jobs.analysis.page import analyze
from jobs.viewer.command import opened
from tango_core import decode_frames, load_encoder
from tango_core.analysis.sinks import SinkRule
from tango_core.benchmarks import build_benchmark

NUM_CLIPS = 2
QUIET = Console(file=io.StringIO())
METHODS = [
    {"name": "full"},
    {"name": "tango", "retention": 0.3},
    {"name": "topk", "retention": 0.1},
    {"name": "fastv", "retention": 0.7, "layer": 2},
]
QWEN3 = {"num_frames": 8, "max_pixels": 2000, "min_pixels": 64}
# Model -> options, temporal positions, tokens of a frame, patches along an axis, blocks.
MODELS = {
    "qwen3-vl-8b": (QWEN3, 4, 25, 10, 5),
    "internvl3.5-8b": ({"num_frames": 4}, 4, 16, 8, 3),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    """Where a model's checkpoint, clips and caches are; its name is the model's."""
    folder = tmp_path_factory.mktemp("models") / request.param
    family = SMALL_FAMILIES[request.param]
    family.save(family.build(), folder / "checkpoint")
    return folder


@pytest.fixture
def recipe(folder):
    """A recipe about two generated clips, whose features are stored."""
    options = MODELS[folder.name][0]
    model = {"name": folder.name, "path": str(folder / "checkpoint"), **options}
    return job(
        folder / "shapes",
        model=model,
        methods=METHODS,
        limit=NUM_CLIPS,
        executor="local",
        cache={"features": "all"},
    )


@pytest.fixture
def analyzed(recipe, folder, tmp_path):
    """`analyzed(analysis)` is the folder of its page."""

    def call(analysis):
        assert analyze(analysis, recipe, tmp_path / "page", str(folder / "cache"), QUIET) == 0
        return tmp_path / "page"

    return call


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_attention(analyzed, folder):
    page = analyzed(analyze_attention)
    num_tokens = MODELS[folder.name][2]
    rows = rows_of(page / "positions.csv")
    for signal in ("p-attn", "attn"):
        values = [float(row["mean signal"]) for row in rows if row["signal"] == signal]
        assert len(values) == num_tokens
        assert all(value > 0 for value in values)
    for name in ("sorted", "mean_maps", "ranks"):
        assert (page / f"{name}.png").stat().st_size > 10_000


def test_sinks_are_a_file_that_a_recipe_can_name(analyzed, folder, tmp_path):
    file = tmp_path / "sinks.json"
    # With rules that every position meets, so that there are some.
    options = {"score": "attention", "rule": SinkRule(max_mean_rank=0.5, max_spread=1)}
    analyzed(partial(analyze_sinks, output=file, **options))
    found = json.loads(file.read_text())
    settings, _, num_tokens, *_ = MODELS[folder.name]
    assert math.prod(found["grid"]) == num_tokens
    assert 0 < len(found["sinks"]) < num_tokens
    checkpoint = str(folder / "checkpoint")
    encoder = load_encoder(folder.name, checkpoint, sinks=str(file), **settings)
    (clip,) = build_benchmark("shapes", root=str(folder / "shapes")).items(1)
    frames = decode_frames(clip.path, encoder.spec.frames, clip.clip)
    assert encoder.encode(frames).sinks == tuple(found["sinks"])


def test_activations(analyzed, folder):
    *_, side, num_layers = MODELS[folder.name]
    layers = (0, num_layers)
    page = analyzed(partial(analyze_activations, layers=layers))
    rows = rows_of(page / "activations.csv")
    assert {int(row["layer"]) for row in rows} == set(layers)
    for layer in layers:
        own = [row for row in rows if int(row["layer"]) == layer]
        assert sum(int(row["positions"]) for row in own) == side * side
        assert all(float(row["top 1"]) >= float(row["top 2"]) > 0 for row in own)
    norms = rows_of(page / "norms.csv")
    assert {int(row["layer"]) for row in norms} == set(range(num_layers + 1))


def test_the_viewer_draws_tokens_over_the_frames_of_the_model(recipe, folder, tmp_path):
    """Of models that join two frames to one position in time, and of grids of their own."""
    _, run_dir = run(recipe, tmp_path)
    kept = answers_of(run_dir).groupby("cell").first()
    _, positions, num_tokens, *_ = MODELS[folder.name]
    with opened([run_dir]) as pages:
        found = [pages.tokens(0, column) for column in (0, 1)]
    for one, cell in zip(found, ("full", "tango r=0.3"), strict=True):
        (drawing,) = one.sets
        assert drawing.missing == ()
        assert drawing.plan.num_kept == kept.loc[cell, "tokens_kept"]
        assert math.prod(drawing.plan.grid) == positions * num_tokens
        assert len(one.view.times) == positions
