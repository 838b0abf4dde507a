"""Checks of the model, the methods and the benchmarks of a recipe."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from doctor_results import job, result_of
from hub_server import hub_server
from releases import videomme_release
from safetensors.torch import load_file, save_file

from jobs.doctor import recipe
from jobs.doctor.checks import Check, CheckResult, run_checks
from tango_core.models import describe_model


def test_the_embedded_checkpoint_is_complete():
    result = result_of(recipe.model, job())
    assert result.status == "ok"
    assert "tiny, 8 frames, float32" in result.text
    assert result.text.endswith("MB, complete")


def test_a_damaged_checkpoint_is_a_problem(tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(describe_model("tiny").path, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    result = result_of(recipe.model, job(model={"path": str(broken)}))
    assert result.status == "problem"
    assert "model.safetensors is damaged" in result.text


@pytest.mark.parametrize("half", ["vision_tower", "language_model"])
def test_a_checkpoint_that_lacks_a_tensor_is_a_problem(tmp_path, half):
    broken = tmp_path / "broken"
    shutil.copytree(describe_model("tiny").path, broken)
    tensors = load_file(broken / "model.safetensors")
    lost = next(name for name in tensors if half in name)
    save_file({n: v for n, v in tensors.items() if n != lost}, broken / "model.safetensors")
    result = result_of(recipe.model, job(model={"path": str(broken)}))
    assert result.status == "problem"
    assert "does not fit its config.json: it lacks" in result.text


def test_a_missing_checkpoint_is_one_problem_and_not_two():
    absent = job(model={"name": "llava-onevision-7b", "path": "/no/such"})
    assert result_of(recipe.model, absent).text.startswith("model.path /no/such is neither")
    assert result_of(recipe.methods, absent, "cache").status == "note"


SIGLIP = "google/none"
LLAVA = "llava-hf/llava-onevision-qwen2-7b-ov-hf"


def hub_results(monkeypatch, tmp_path, offline, url=""):
    """What is said about a model and its methods where the model is on the hub alone."""
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    remote = job(model={"name": "llava-onevision-7b", "saliency_from": SIGLIP})
    checks = [
        Check("model", recipe.model, (remote,), timeout_s=120),
        Check("methods", recipe.methods, (remote, "cache"), timeout_s=120),
    ]
    result, methods = (result for _, result in run_checks(checks))
    assert methods.status == "note"
    return result


def test_a_hub_checkpoint_cannot_be_downloaded_offline(monkeypatch, tmp_path):
    result = hub_results(monkeypatch, tmp_path, "1")
    assert result.status == "problem"
    assert f"{LLAVA} and {SIGLIP}" in result.text
    assert f"tango model get {SIGLIP}" in result.text


@pytest.mark.slow
def test_a_hub_checkpoint_is_to_be_downloaded(monkeypatch, tmp_path):
    with hub_server() as hub:
        for name in (LLAVA, SIGLIP):
            hub.publish(f"models/{name}", {"config.json": b"{}"})
        result = hub_results(monkeypatch, tmp_path, "0", hub.url)
        assert result.status == "note"
        assert f"{LLAVA} and {SIGLIP} will be downloaded, and the hub gives it" in result.text
        hub.repositories[f"models/{SIGLIP}"].gated = True
        result = hub_results(monkeypatch, tmp_path, "0", hub.url)
        assert result.status == "problem"
        assert f"{SIGLIP}: it is gated: ask for access on {hub.url}/{SIGLIP}" in result.text


def test_methods_are_built_for_the_model():
    several = job(method=None, methods=[{"name": "full"}, {"name": "dart", "retention": 0.6}])
    assert result_of(recipe.methods, several, "cache") == CheckResult(
        "ok", "2 with 1 token cache(s)"
    )
    deep = {"name": "fastv", "retention": 0.2}
    result = result_of(recipe.methods, job(method=deep), "cache")
    assert result.status == "problem"
    assert "cannot be reached with layer=2" in result.text
    methods = [{"name": "full"}, deep]
    skipped = job(method=None, methods=methods, infeasible="skip")
    result = result_of(recipe.methods, skipped, "cache")
    assert result.status == "note"
    assert "fastv r=0.2" in result.text


def test_a_wrong_option_of_a_method_is_a_problem():
    result = result_of(recipe.methods, job(method={"name": "tango", "alhpa": 1}), "cache")
    assert result.status == "problem"
    assert "did you mean 'alpha'?" in result.text


def test_annotations_are_found_or_missed(tmp_path):
    videomme_release(tmp_path)
    (there,) = job(benchmark={"name": "videomme", "root": str(tmp_path)}).all_benchmarks
    result = result_of(recipe.benchmark, there)
    assert result.status == "ok"
    assert f"tango data check videomme {tmp_path}" in result.text
    result = result_of(recipe.benchmark, replace(there, root=str(tmp_path / "none")))
    assert result.status == "problem"
    assert "is not a folder" in result.text


def test_generated_clips_need_a_writable_directory(tmp_path):
    (here,) = job(benchmark={"name": "shapes", "root": str(tmp_path)}).all_benchmarks
    assert result_of(recipe.benchmark, here).status in ("ok", "note")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("here")
    result = result_of(recipe.benchmark, replace(here, root=str(tmp_path / "file")))
    assert result.status == "problem"
    assert "benchmark.root" in result.text
