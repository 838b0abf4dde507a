"""`tango doctor`: its checks, what is a problem and what it says, and the command."""

from __future__ import annotations

import os
import time
from importlib import import_module
from operator import getitem

import doctor_results
import pytest
import torch
from doctor_results import job, result_of
from fresh_python import printed_by
from jobs_for_tests import write_recipe
from releases import videomme_release

from jobs.doctor import checks
from jobs.doctor.checks import Check, CheckResult, run_checks


@pytest.fixture(scope="module", autouse=True)
def _one_process():
    """One child process for the checks of all tests, as the command has one for all of its own."""
    yield
    doctor_results.close()


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
        (checks.writable, ("nonsense://bucket", "--cache"), "problem", "not known: nonsense"),
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


def test_annotations_are_opened_and_generated_clips_are_not_written(tmp_path):
    videomme_release(tmp_path)
    (there,) = job(benchmark={"name": "videomme", "root": str(tmp_path)}).all_benchmarks
    assert f"tango data check videomme {tmp_path}" in result_of(checks.benchmark, there).text
    clips = tmp_path / "clips"
    clips.mkdir()
    (here,) = job(benchmark={"name": "shapes", "root": str(clips)}).all_benchmarks
    assert result_of(checks.benchmark, here).status == "ok"
    assert list(clips.iterdir()) == []


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
        "import sys, jobs.doctor.checks\n"
        "print(sorted({'torch', 'ray', 'transformers', 'mlflow', 'av'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"


MACHINE = (
    *("packages", "accelerators", "machine", "output", "cache", "temporary", "MLflow", "decoder"),
    "built-in model",
)


@pytest.fixture
def doctor(tango):
    """`doctor(*arguments)`: exit code, and (mark, text) by subject; one line per check."""

    def call(*arguments):
        code, out, err = tango("doctor", *arguments)
        assert not err
        *lines, last = out.splitlines()
        found = {}
        for line in lines:
            assert line[:8].strip() in ("ok", "note", "problem"), out
            found[line[8:23].strip()] = (line[:8].strip(), line[23:])
        assert len(found) == len(lines)
        marks = [mark for mark, _ in found.values()]
        assert f"{marks.count('problem')} problem" in last
        assert f"{marks.count('note')} note" in last
        return code, found

    return call


def test_a_machine_that_runs_the_tests_has_no_problem_and_keeps_nothing(doctor, tmp_path):
    code, found = doctor()
    assert tuple(found) == (*MACHINE, "Ray")
    assert code == 0, found
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_adds_what_it_names(doctor, tmp_path):
    write_recipe(tmp_path)
    code, found = doctor("recipe.yaml", "--set", "model.num_frames=[4, 8]")
    assert tuple(found) == ("recipe", *MACHINE, "model", "methods", "benchmark", "Ray")
    assert code == 0, found
    assert "tiny, 4 frames" in found["model"][1]
    assert str(tmp_path / "data" / "shapes") in found["benchmark"][1]


def test_every_mistake_has_its_line_and_the_exit_code_is_1(doctor, tmp_path):
    write_recipe(
        tmp_path,
        benchmark={"name": "mlvu", "root": "nowhere"},
        model={"path": "/no/such"},
        method={"name": "tango", "retention": 2},
        pools={"decode": {"num_cpus": 4096}},
        executor="auto",
    )
    places = ["--output", "recipe.yaml/runs", "--cache", "nonsense://bucket"]
    code, found = doctor("recipe.yaml", *places, "--tracking-uri", "http://127.0.0.1:1")
    assert code == 1
    problems = {subject: text for subject, (mark, text) in found.items() if mark == "problem"}
    expected = {
        "output": "--output recipe.yaml/runs cannot be written to",
        "cache": "Protocol not known: nonsense; use a local path",
        "MLflow": "MlflowException: API request to http://127.0.0.1:1",
        "model": "model.path /no/such",
        "methods": "retention must be in (0, 1], got 2",
        "benchmark": "benchmark.root 'nowhere' is not a folder",
        "Ray": "lower pools.decode.num_cpus",
    }
    assert problems.keys() == expected.keys(), problems
    for subject, part in expected.items():
        assert part in problems[subject]
