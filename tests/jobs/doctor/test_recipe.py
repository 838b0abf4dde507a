"""Checks of places, services and what a recipe names: what is a problem, and what it says."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from importlib import import_module
from operator import getitem

import pytest
import torch
from doctor_results import job, result_of
from fresh_python import printed_by
from releases import videomme_release

from jobs.doctor import checks
from jobs.doctor.checks import CheckResult
from jobs.doctor.command import Check, run_checks

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
DEEP = {"name": "fastv", "retention": 0.2}
SEVERAL = {"method": None, "methods": [{"name": "full"}, {"name": "dart", "retention": 0.6}]}
SKIPPED = {"method": None, "methods": [{"name": "full"}, DEEP], "infeasible": "skip"}
ABSENT = {"model": {"name": "llava-onevision-7b", "path": "/no/such"}}
GPU = {"executor": "ray", "pools": {"answer": {"num_actors": 1, "num_gpus": 1}}}


@pytest.mark.parametrize(
    ("check", "arguments", "status", "text"),
    [
        (checks.writable, ("memory://bucket/cache", "--cache"), "ok", "can be written to"),
        (checks.writable, ("nonsense://bucket", "--cache"), "problem", "nonsense://bucket"),
        (checks.writable, (f"{__file__}/runs", "--output"), "problem", "--output"),
        (checks.tracking, ("http://127.0.0.1:1",), "problem", "http://127.0.0.1:1"),
        (checks.ray_pools, (job(), None), "ok", "not used"),
        (checks.ray_pools, (job(executor="ray"), None), "ok", "pools fit"),
        pytest.param(
            *(checks.ray_pools, (job(model={"device": "cuda"}), None), "problem"),
            "model.device is cuda",
            marks=NO_GPU,
        ),
        pytest.param(
            *(checks.ray_pools, (job(**GPU), None), "problem"),
            "lower pools.answer.num_actors",
            marks=NO_GPU,
        ),
        (checks.ray_pools, (None, "127.0.0.1:1"), "problem", "no Ray cluster at --address 127"),
        (checks.model, (job(),), "ok", "tiny, 8 frames, float32"),
        (checks.model, (job(**ABSENT),), "problem", "model.path /no/such is neither"),
        (checks.methods, (job(**ABSENT), "cache"), "note", "not checked"),
        (checks.methods, (job(**SEVERAL), "cache"), "ok", "2 with 1 token cache(s)"),
        (checks.methods, (job(method=DEEP), "cache"), "problem", "cannot be reached with layer=2"),
        (checks.methods, (job(**SKIPPED), "cache"), "note", "fastv r=0.2"),
        (checks.packages, (), "ok", "tango-video"),
        pytest.param(checks.accelerators, (), "ok", torch.__version__, marks=NO_GPU),
        (checks.video_decoder, ("pyav",), "ok", "pyav"),
        (checks.video_decoder, ("vlc",), "problem", "unknown decoder 'vlc'; choose one of"),
    ],
)
def test_a_check_reports_what_it_found(check, arguments, status, text):
    result = result_of(check, *arguments)
    assert result.status == status, result
    assert text in result.text


def test_a_directory_is_left_unchanged(tmp_path):
    for location in (tmp_path, tmp_path / "a" / "b"):
        assert result_of(checks.writable, str(location), "--output").status in ("ok", "note")
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_asked_and_not_created(tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    created = CheckResult("ok", f"{uri} will be created by the first run")
    assert result_of(checks.tracking, uri) == created
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mlflow.db").write_bytes(b"no database " * 100)
    assert result_of(checks.tracking, uri).status == "problem"


@pytest.mark.ray
def test_pools_are_compared_with_a_cluster(local_ray):
    import ray

    address = ray.get_runtime_context().gcs_address
    result = result_of(checks.ray_pools, None, address)
    assert result.status == "ok", result
    assert f"{address}: 4 CPUs and 0 GPUs on 1 node(s)" in result.text
    assert "pools fit" in result_of(checks.ray_pools, job(executor="ray"), address).text
    pools = {"compress": {"num_actors": 5, "num_cpus": 1}}
    result = result_of(checks.ray_pools, job(executor="ray", pools=pools), address)
    assert result.status == "problem"
    assert "lower pools.compress.num_actors" in result.text


def test_annotations_and_places_of_generated_clips_are_found_or_missed(tmp_path):
    videomme_release(tmp_path)
    (there,) = job(benchmark={"name": "videomme", "root": str(tmp_path)}).all_benchmarks
    result = result_of(checks.benchmark, there)
    assert result.status == "ok"
    assert f"tango data check videomme {tmp_path}" in result.text
    result = result_of(checks.benchmark, replace(there, root=str(tmp_path / "none")))
    assert result.status == "problem"
    assert "is not a folder" in result.text
    clips = tmp_path / "clips"
    clips.mkdir()
    (here,) = job(benchmark={"name": "shapes", "root": str(clips)}).all_benchmarks
    assert result_of(checks.benchmark, here).status in ("ok", "note")
    assert list(clips.iterdir()) == []
    (clips / "file").write_text("here")
    result = result_of(checks.benchmark, replace(here, root=str(clips / "file")))
    assert result.status == "problem"
    assert "benchmark.root" in result.text


@pytest.mark.gpu
def test_a_gpu_is_named_with_its_memory():
    result = result_of(checks.accelerators)
    assert result.status == "ok"
    assert torch.cuda.get_device_name() in result.text
    assert "bfloat16" in result.text


def test_a_container_has_the_cpus_and_the_memory_of_its_limits(tmp_path):
    (tmp_path / "memory.max").write_text("3000000000\n")
    (tmp_path / "memory.current").write_text("1000000000\n")
    (tmp_path / "cpu.max").write_text("100000 100000")
    result = checks.machine(tmp_path)
    assert result.status == "note"
    assert f"1 of {os.cpu_count()} CPUs, 2.0 GB of 3.0 GB memory free" in result.text


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_a_container_has_the_cpus_of_its_quota(tmp_path, files, cpus, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert checks.num_cpus(tmp_path) == cpus


@pytest.mark.slow
def test_the_embedded_model_answers():
    result = result_of(checks.embedded_model)
    assert result.status == "ok"
    assert result.text.endswith("right")


def test_a_check_that_fails_is_a_problem_and_the_next_one_runs():
    wanted = [
        Check("raises", int, ("x",)),
        Check("surprises", getitem, ({}, "key")),
        Check("needs", import_module, ("no_such_module",)),
        Check("crashes", os.abort),
        Check("leaves", os._exit, (3,)),
        Check("hangs", time.sleep, (60,), timeout_s=0.5),
        Check("works", checks.machine),
    ]
    results = dict(run_checks(wanted))
    assert [results[check.subject].status for check in wanted[:-1]] == ["problem"] * 6
    assert results["raises"].text.startswith("invalid literal")
    assert results["surprises"].text == "KeyError: 'key'"
    assert results["needs"].text == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "SIGABRT" in results["crashes"].text
    assert "status 3" in results["leaves"].text
    assert "no result from the check within 0.5 s" in results["hangs"].text
    assert results["works"].status != "problem"


def test_the_command_imports_no_library_that_it_checks():
    code = (
        "import sys, jobs.doctor.command\n"
        "print(sorted({'torch', 'ray', 'transformers', 'mlflow', 'av'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"
