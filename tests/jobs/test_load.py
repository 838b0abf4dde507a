"""`tango measure-load`: how requests arrive, and what a measurement holds."""

import json

import numpy as np
import pytest
from jobs_for_tests import job, run
from typer.testing import CliRunner

from jobs.cli.main import app
from jobs.load import Load, load_plot

METHODS = [
    {"name": "full"},
    {"name": "uniform", "retention": 0.1},
    {"name": "fastv", "retention": 0.7, "layer": 2},
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe whose clips are all cached, and the directory of the caches."""
    folder = tmp_path_factory.mktemp("load")
    model = {"name": "tiny", "num_frames": 4}
    asked = job(folder / "shapes", model=model, methods=METHODS, limit=3, executor="local")
    run(asked, folder)
    path = folder / "recipe.yaml"
    path.write_text(asked.to_yaml())
    return path, folder / "cache"


def measured(recipe, output, *options):
    path, cache = recipe
    arguments = ["measure-load", str(path), "--cache", str(cache), "--output", str(output)]
    done = CliRunner().invoke(app, [*arguments, *options])
    return done, (json.loads((output / "load.json").read_text()) if done.exit_code == 0 else None)


def test_every_cell_is_measured_under_every_load(recipe, tmp_path):
    options = ["--concurrency", "1", "--concurrency", "8", "--rate", "40", "--requests", "12"]
    done, rows = measured(recipe, tmp_path, *options)
    assert done.exit_code == 0, done.exception
    loads = [("closed", 1.0), ("closed", 8.0), ("open", 40.0)]
    cells = [name for name, _ in job(tmp_path, methods=METHODS).all_methods]
    assert [(row["cell"], (row["kind"], row["level"])) for row in rows] == [
        (cell, load) for cell in cells for load in loads
    ]
    for row in rows:
        assert (row["engine"], row["requests"], row["failed"]) == ("native", 12, 0)
        assert row["requests_per_s"] == pytest.approx(12 / row["seconds"])
        assert 0 < row["ttft_p50_ms"] <= row["ttft_p95_ms"]
        assert row["ttft_p50_ms"] <= row["total_p50_ms"]
        shares = [row[f"{stage}_share"] for stage in ("read", "first", "rest")]
        assert sum(shares) == pytest.approx(1)
        assert min(shares) >= 0
    # The same questions give the same answers, however they arrive.
    for cell in cells:
        assert len({row["accuracy"] for row in rows if row["cell"] == cell}) == 1
    assert all(row["speedup"] == 1 for row in rows if row["cell"] == "full")
    assert "requests/s at equal accuracy" in (tmp_path / "load.md").read_text()
    assert (tmp_path / "load.png").stat().st_size > 10_000
    figure = load_plot(rows)
    figure.draw_without_rendering()
    (panel,) = figure.axes
    assert all(float(label.get_text()) > 0 for label in panel.get_yticklabels())


def test_another_measurement_is_added_and_an_equal_one_replaced(recipe, tmp_path):
    one, eight = (["--concurrency", n, "--requests", "4"] for n in ("1", "8"))
    _, first = measured(recipe, tmp_path, *one)
    _, both = measured(recipe, tmp_path, *eight, "--reply-tokens", "5")
    assert both[: len(first)] == first
    assert [row["level"] for row in both[len(first) :]] == [8.0] * 3
    for row in both[len(first) :]:
        assert row["accuracy"] is None
        assert row["tokens_per_s"] == pytest.approx(5 * row["requests_per_s"])
    text = (tmp_path / "load.md").read_text()
    assert "native, 1 at once: " in text
    assert "native, 8 at once: " not in text  # replies of a fixed length have no accuracy
    _, again = measured(recipe, tmp_path, *one)
    assert len(again) == len(both)


def test_a_clip_that_is_not_cached_is_named(recipe, tmp_path):
    path, _ = recipe
    (tmp_path / "empty").mkdir()
    done, _ = measured((path, tmp_path / "empty"), tmp_path)
    assert "3 of 3 clips are not in the caches" in str(done.exception)
    assert "tango precompute" in str(done.exception)


def test_requests_of_an_open_loop_arrive_at_the_given_mean_rate():
    arrivals = np.array(Load("open", 5.0).arrivals(4000))
    pauses = np.diff(arrivals)
    assert (pauses > 0).all()
    assert pauses.mean() == pytest.approx(0.2, rel=0.1)
    assert pauses.std() == pytest.approx(0.2, rel=0.1)
