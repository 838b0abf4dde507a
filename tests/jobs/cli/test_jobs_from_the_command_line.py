"""The commands with right and wrong input, as a person at a terminal meets them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import methods_as_files
import pytest
import yaml
from jobs_for_tests import write_recipe

import jobs
from jobs.config.recipe import load_job
from jobs.run.run_dirs import claim, new_run_dir
from tango_core import describe_model

ROOT = Path(jobs.__file__).parents[1]


@pytest.fixture
def recipe(tmp_path):
    """Writes a recipe with changes to its sections."""
    return lambda **changes: write_recipe(tmp_path, **changes).name


def test_evaluate_leaves_every_file_of_the_contract(tango, recipe, tmp_path):
    code, out, _ = tango("evaluate", recipe(), "--limit", "2")
    assert code == 0
    assert "tango r=0.1" in out
    assert "2 decoded, 2 encoded" in out
    (run_dir,) = [path for path in (tmp_path / "runs").iterdir() if (path / "job.yaml").exists()]
    for name in ("summary.json", "report.html", "failures.parquet"):
        assert (run_dir / name).is_file()
    assert list((run_dir / "answers").glob("*.parquet"))
    assert list((run_dir / "plots").glob("*.svg"))
    summary = yaml.safe_load((run_dir / "summary.json").read_text())
    needed = (
        "accuracy accuracy_ci95 accuracy_by num_questions num_answered num_failed "
        "retention_requested retention_actual equivalent_retention tokens_total tokens_kept "
        "latency_ms cache throughput prefill_tflops"
    )
    assert not set(needed.split()) - set(summary)
    assert (tmp_path / "runs" / "mlflow.db").is_file()


NO_SERVER = ("--tracking-uri", "http://127.0.0.1:9")  # nobody listens there; MLflow is not loaded


def test_failed_clips_are_named_in_json_events_and_give_exit_code_1(tango, recipe, tmp_path):
    videos = tmp_path / "videos"
    videos.mkdir()
    (videos / "broken.mp4").write_text("no video")
    path = recipe(benchmark={"name": "custom", "root": str(videos)})
    code, out, err = tango("precompute", path, "--json", *NO_SERVER)
    events = [json.loads(line) for line in out.splitlines()]
    kinds = [event["event"] for event in events if event["event"] != "progress"]
    assert kinds == ["started", "clip_failed", "stopped", "finished"]
    started, failed, stopped, finished = (
        next(event for event in events if event["event"] == kind) for kind in kinds
    )
    assert started["clips"] == 1
    assert (failed["video_id"], failed["reason"].split(":")[0]) == ("broken.mp4", "decode_failed")
    assert stopped["stages"]["decode"]["failed"] == 1
    assert finished["exit_code"] == code == 1
    assert "clips:   1 (0 decoded" in err
    assert "1 clip(s) failed and max_failures is 0" in err
    assert tango("precompute", path, "--set", "max_failures=1", *NO_SERVER)[0] == 0


def test_quiet_leaves_results_warnings_and_errors(tango, recipe):
    code, out, err = tango("precompute", recipe(), "--limit", "1", "--quiet", *NO_SERVER)
    assert code == 0
    assert out.startswith("clips:   1 (1 decoded")
    (warning,) = err.strip().splitlines()
    assert "not logged to MLflow at http://127.0.0.1:9 (MlflowException: API request to" in warning


def test_precomputed_features_serve_every_later_method(tango, recipe, tmp_path):
    code, out, _ = tango("precompute", recipe(), "--limit", "2", "--features", *NO_SERVER)
    assert code == 0
    folder = next(line.split()[-1] for line in out.splitlines() if line.startswith("features:"))
    assert len(list((tmp_path / folder).glob("*.parquet"))) == 4
    (file,) = tmp_path.glob("runs/*/summary.json")
    summary = json.loads(file.read_text())
    assert summary["work"]["decoded"] == summary["work"]["encoded"] == 2
    assert summary["cache"] == {"hits": 0, "misses": summary["work"]["compressed"]}
    options = ("--limit", "2", "--set", "cache.features=all", "--set", "method.retention=0.3")
    code, out, err = tango("evaluate", recipe(), *options, *NO_SERVER)
    assert code == 0
    assert "0 clips to decode and encode, 2 from cache, 2 of these from stored features" in err
    assert "2 (0 decoded, 0 encoded, 0 failed); token sets: 0 computed, 2 from cache" in out
    (summary,) = tmp_path.glob("runs/*/report.html")
    work = json.loads((summary.parent / "summary.json").read_text())["work"]
    assert (work["decoded"], work["encoded"], work["compressed"]) == (0, 0, 0)
    assert work["answered"] > 0


def test_a_cluster_that_is_not_there_is_one_line(recipe, tmp_path):
    """In a process of its own, because a thread that looks for a Ray outlives the command."""
    nowhere = ("--address", "127.0.0.1:1")
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli.entry", "evaluate", recipe(executor="ray"), *nowhere],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 2
    assert "no Ray cluster at --address 127.0.0.1:1" in done.stderr.splitlines()[-1]


def test_a_damaged_checkpoint_is_found_before_any_worker_starts(tango, recipe, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(describe_model("tiny").path, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    code, _, err = tango("evaluate", recipe(model={"path": str(broken)}, executor="ray"))
    assert code == 2
    (line,) = err.splitlines()
    assert "model.safetensors is damaged" in line


@pytest.fixture
def own_method(tmp_path, monkeypatch):
    """A module in the directory in which the command is started."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    keep = "return select(features, torch.arange(num_kept(total, self.retention)) + self.skip)"
    first = f"total = features.tokens[..., 0].numel()\n{keep}\n"
    source = methods_as_files.own_method("First", option="skip: int = 0", first=first)
    (tmp_path / "own_methods.py").write_text(source)
    methods_as_files.forget()
    yield "own_methods:First"
    methods_as_files.forget("own_methods")


def test_a_method_that_keeps_the_contract_and_one_that_breaks_it(tango, own_method):
    code, out, err = tango("check-method", own_method, "--set", "retention=0.2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert all(line.startswith("ok      ") for line in lines)
    assert "ok      same output in another process" in lines
    code, out, _ = tango("check-method", own_method, "--set", "retention=0.9", "--set", "skip=9")
    assert code == 1
    failed = [line for line in out.splitlines() if line.startswith("FAILED  ")]
    assert any(": clip one-frame, torch.float32, retention 0.9: " in line for line in failed)


@pytest.mark.slow
def test_the_same_command_goes_on_in_the_run_that_was_begun(tango, recipe, tmp_path):
    path = recipe(method={"name": "full"}, limit=1)
    job = load_job(tmp_path / path)
    run = new_run_dir(job, tmp_path / "runs")
    claim(run, job)
    code, _, err = tango("evaluate", path, "--continue")
    assert code == 0
    assert f"continuing runs/{run.name}, the newest unfinished run of this job" in err
    assert [path.parent for path in (tmp_path / "runs").glob("*/summary.json")] == [run]
