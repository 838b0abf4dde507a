"""`tango analyze` as a person at a terminal meets it: pages, numbers, and mistakes in one line."""

from __future__ import annotations

import csv
import json
import re

import pytest
from numbered_videos import write_clip

INSIDE = "{name: fastv, retention: 0.5, layer: 1}"
NO_SERVER = ("--tracking-uri", "http://127.0.0.1:9")  # MLflow is not what is tested here


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return str(write_clip(tmp_path_factory.mktemp("videos") / "clip.mp4", 48))


@pytest.fixture
def recipe(tmp_path, video):
    """A recipe about two parts of a video."""
    rows = [{"video": video, "question": "Why?"}, {"video": video, "start": 0.5, "end": 1.5}]
    table = tmp_path / "questions.jsonl"
    table.write_text("\n".join(json.dumps({"question": "Why?", **row}) for row in rows))
    content = {
        "benchmark": {"name": "custom", "root": str(table)},
        "model": {"name": "tiny", "num_frames": 3},
        "methods": [
            {"name": "full"},
            {"name": "topk", "retention": [0.1, 0.5]},
            {"name": "fastv", "retention": 0.5, "layer": 1},
        ],
        "executor": "local",
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(content))
    return "recipe.yaml"


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_activations_clusters_and_coverage_leave_theirs(tango, recipe, tmp_path):
    assert tango("analyze", "activations", recipe, "--layer", 0, "--layer", 2)[0] == 0
    layers = rows_of(tmp_path / "analysis" / "activations" / "activations.csv")
    assert {row["layer"] for row in layers} == {"0", "2"}
    assert all(float(row["top 1"]) >= float(row["top 2"]) > 0 for row in layers)
    norms = rows_of(tmp_path / "analysis" / "activations" / "norms.csv")
    assert {row["layer"] for row in norms} == {"0", "1", "2", "3"}
    clusters = ("--share", 0.25, "--window", 2, "--examples", 1)
    assert tango("analyze", "clusters", recipe, *clusters)[0] == 0
    folder = tmp_path / "analysis" / "clusters"
    assert (folder / "maps_1.png").is_file()
    assert not (folder / "maps_2.png").exists()
    total = rows_of(folder / "fragmentation.csv")[0]
    assert (total["clip"], total["clusters"]) == ("all", str(2 * (32 + 16)))
    code, out, _ = tango("analyze", "coverage", recipe, "--output", "found")
    assert code == 0
    assert "1 cell(s) left out, which drop tokens inside the language model" in out
    cells = {row["cell"]: row for row in rows_of(tmp_path / "found" / "coverage" / "coverage.csv")}
    assert cells["full"]["worst"] == "1.0000"
    assert float(cells["topk r=0.1"]["mean"]) < float(cells["topk r=0.5"]["mean"]) < 1
    assert float(cells["topk r=0.5"]["kept %"]) == pytest.approx(50, abs=1)


def never(*arguments, **options):
    raise AssertionError("a clip was decoded, whose features and plans are stored")


@pytest.mark.slow
def test_a_run_is_explained_from_its_caches_alone(tango, tmp_path, monkeypatch):
    content = {
        "benchmark": {"name": "shapes"},
        "model": {"name": "tiny", "num_frames": 8},
        "methods": [
            {"name": "full"},
            {"name": "topk", "retention": 0.1},
            {"name": "cdpruner", "retention": 0.1},
            *({"name": "random", "retention": share} for share in (0.05, 0.1, 0.25, 0.5)),
        ],
        "executor": "local",
        "limit": 5,
        "cache": {"features": "all"},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(content))
    assert tango("sweep", "recipe.yaml", *NO_SERVER)[0] == 0
    (run,) = (path.parent for path in (tmp_path / "runs").glob("*/facts.json"))

    monkeypatch.setattr("jobs.analysis.clips.decode_video", never)
    code, out, _ = tango("analyze", "coverage", run)
    assert code == 0
    assert "features of 5 from the store" in out
    assert "rank correlation with accuracy, retentions of one method" in out
    code, out, _ = tango("analyze", "evidence", run)
    assert code == 0
    assert re.search(r"of \d+ answers that are right with all tokens and wrong", out)
    cells = {r["cell"]: r for r in rows_of(tmp_path / "analysis" / "evidence" / "evidence.csv")}
    assert "cell(s) left out" not in out
    assert float(cells["cdpruner r=0.1"]["survives %"]) > float(cells["random r=0.1"]["survives %"])
    assert cells["full"]["survives %"] == "100.0"
    assert cells["full"]["lost %"] == "0.0"
    for row in cells.values():
        assert float(row["survives %"]) <= float(row["best known %"]) + 0.1
    random = cells["random r=0.05"]
    assert float(random["survives %"]) < 20
    parts = [float(random[f"lost: {name} %"]) for name in ("gone", "still there")]
    assert sum(parts) == pytest.approx(100, abs=0.2)
    # Accuracies are those of the answers to questions about objects.
    from jobs.notebook import load_run

    answers = load_run(run).answers(["cell", "question_id", "correct"], groups=True)
    about = answers[answers["group.type"] != "order"]
    for name, row in cells.items():
        expected = 100 * about[about["cell"] == name]["correct"].astype(float).mean()
        assert float(row["accuracy %"]) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["activations", "recipe.yaml", "--layer", "9"],
            "is not one of model tiny: 0 (embeddings) to 3",
        ),
        (["coverage", "recipe.yaml", "--set", f"methods=[{INSIDE}]"], "plans its tokens before"),
    ],
)
def test_a_mistake_ends_in_one_helpful_line(tango, recipe, arguments, message):
    code, _, err = tango("analyze", *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1, err


def test_clips_that_cannot_be_decoded_are_counted_and_none_is_refused(tango, recipe, tmp_path):
    (tmp_path / "broken.mp4").write_text("no video")
    (tmp_path / "questions.jsonl").write_text(
        json.dumps({"video": "broken.mp4", "question": "Why?"})
    )
    for analysis in ("attention", "activations", "clusters", "coverage"):
        code, _, err = tango("analyze", analysis, recipe)
        assert code == 2, analysis
        assert "none of 1 clip(s) could be decoded" in err
        assert "broken.mp4" in err
