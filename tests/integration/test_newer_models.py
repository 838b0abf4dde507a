"""Every new model under two methods on every new benchmark, from written releases to tables."""

from __future__ import annotations

import json

import internvl_checkpoints
import pytest
import qwen3_checkpoints
from jobs_for_tests import answers_of, run
from numbered_videos import write_clip
from releases import (
    charades_parquet,
    load,
    lvbench_release,
    tempcompass_release,
    videomme_v2_release,
)

from jobs.config.recipe import parse_job
from jobs.report.compare import report_runs
from tango_core.benchmarks import facts_of

# Model -> how its checkpoint is made, and its options.
MODELS = {
    "qwen3-vl-8b": (
        lambda folder: qwen3_checkpoints.save_qwen3(qwen3_checkpoints.build_qwen3(), folder, "hub"),
        {"num_frames": 6, "max_pixels": 2000, "min_pixels": 64},
    ),
    "internvl3.5-8b": (
        lambda folder: internvl_checkpoints.save_internvl(
            internvl_checkpoints.build_internvl(), folder, "chat"
        ),
        {"num_frames": 3},
    ),
}
# Benchmark -> writer of a release.
RELEASES = {
    "videomme_v2": videomme_v2_release,
    "tempcompass": tempcompass_release,
    "lvbench": lvbench_release,
    "charades_sta": charades_parquet,
}
METHODS = [
    {"name": "tango", "retention": 0.3},
    {"name": "fastv", "retention": 0.7, "layer": 2},
]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Checkpoints and releases with their videos."""
    folder = tmp_path_factory.mktemp("made")
    for name, (save, _) in MODELS.items():
        save(folder / name)
    for name, write in RELEASES.items():
        root = write(folder / name)
        for item in load(name, root).items():
            path = root / item.path
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_clip(path, 24)
    return folder


@pytest.mark.parametrize("protocol", ["vlmevalkit", "lmms_eval"])
@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_asked_and_scored(made, tmp_path, model, protocol):
    roots = {name: made / name for name in RELEASES}
    recipe = {
        "benchmarks": [
            {"name": name, "root": str(root), "protocol": protocol} for name, root in roots.items()
        ],
        "model": {"name": model, "path": str(made / model), **MODELS[model][1]},
        "methods": METHODS,
        "executor": "local",
    }
    result, run_dir = run(parse_job(recipe, "test"), tmp_path)
    assert result.num_failed_clips == 0
    answers = answers_of(run_dir)
    page = report_runs([run_dir]).read_text(encoding="utf-8")
    cells = json.loads((run_dir / "summary.json").read_text())["cells"]
    assert len(cells) == len(METHODS) * len(RELEASES)
    for cell in cells:
        name, headline = cell["benchmark"], facts_of(cell["benchmark"]).metrics[0]
        own = answers[(answers["benchmark"] == name) & (answers["cell"] == cell["cell"])]
        items = list(load(name, roots[name], protocol=protocol).items())
        assert len(own) == sum(len(item.questions) for item in items)
        assert set(own["status"]) <= {"ok", "unparsed"}
        assert (own["clip_text_tokens"] > 0).all(), "times or labels stand between frames"
        fewer = own["tokens_kept"] < own["tokens_total"]
        assert fewer.all() if cell["method"] == "tango" else not fewer.any()
        found = cell["scores"][headline.name] if headline.name != "accuracy" else None
        if headline.unit == "group":
            assert found["n"] == own["video_id"].nunique()
            assert 0 <= found["value"] <= 1
        elif found:
            assert found["value"] == pytest.approx(own["score"].mean())
        else:
            assert cell["accuracy"] == pytest.approx(own["correct"].dropna().astype(float).mean())
        assert headline.title in page
