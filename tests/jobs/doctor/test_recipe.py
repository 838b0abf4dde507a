"""Checks of places, services and what a recipe names: what is a problem, and what it says."""

from __future__ import annotations

import io
import os
import shutil
import socket
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from operator import getitem

import pytest
import torch
from doctor_results import job, result_in_a_new_process, result_of
from fresh_python import printed_by
from hub_server import hub_server
from releases import videomme_release
from rich.console import Console
from safetensors.torch import load_file, save_file

from jobs.doctor import checks
from jobs.doctor.checks import CheckResult
from jobs.doctor.command import Check, print_result, run_checks
from tango_core.models import describe_model
from tango_core.video import DecoderUnavailableError, decoder_versions

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
DEEP = {"name": "fastv", "retention": 0.2}
SEVERAL = {"method": None, "methods": [{"name": "full"}, {"name": "dart", "retention": 0.6}]}
SKIPPED = {"method": None, "methods": [{"name": "full"}, DEEP], "infeasible": "skip"}
ABSENT = {"model": {"name": "llava-onevision-7b", "path": "/no/such"}}
MANY = {"executor": "ray", "pools": {"decode": {"num_cpus": 4096}}}
GPU = {"executor": "ray", "pools": {"answer": {"num_actors": 1, "num_gpus": 1}}}


@pytest.mark.parametrize(
    ("check", "arguments", "status", "said"),
    [
        (checks.writable, ("memory://bucket/cache", "--cache"), "ok", "can be written to"),
        (checks.writable, ("nonsense://bucket", "--cache"), "problem", "nonsense://bucket"),
        (checks.writable, ("/proc/runs", "--output"), "problem", "/proc cannot be written to"),
        (checks.writable, (f"{__file__}/runs", "--output"), "problem", "another --output"),
        (checks.tracking, ("runs/mlruns",), "problem", "retired file store"),
        (checks.tracking, ("http://127.0.0.1:1",), "problem", "later with `tango log-run`"),
        (checks.ray_pools, (job(), None), "ok", "not used: one process on the CPU"),
        (checks.ray_pools, (job(), "127.0.0.1:1"), "note", "--address 127.0.0.1:1 is not used"),
        (checks.ray_pools, (job(executor="ray", mode="profile"), None), "ok", "not used"),
        (checks.ray_pools, (job(executor="ray"), None), "ok", "pools fit"),
        (checks.ray_pools, (job(**MANY), None), "problem", "pools.decode.num_cpus"),
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
        (checks.model, (job(),), "ok", "tiny, 8 frames, float32"),
        (checks.model, (job(**ABSENT),), "problem", "model.path /no/such is neither"),
        (checks.methods, (job(**ABSENT), "cache"), "note", "not checked"),
        (checks.methods, (job(**SEVERAL), "cache"), "ok", "2 with 1 token cache(s)"),
        (checks.methods, (job(method=DEEP), "cache"), "problem", "cannot be reached with layer=2"),
        (checks.methods, (job(**SKIPPED), "cache"), "note", "fastv r=0.2"),
        (
            *(checks.methods, (job(method={"name": "tango", "alhpa": 1}), "cache"), "problem"),
            "did you mean 'alpha'?",
        ),
    ],
)
def test_a_check_says_what_it_found(check, arguments, status, said):
    result = result_of(check, *arguments)
    assert result.status == status, result
    assert said in result.text


def test_a_directory_is_written_to_and_left_unchanged(tmp_path, monkeypatch):
    for location in (tmp_path, tmp_path / "a" / "b"):
        assert result_of(checks.writable, str(location), "--output").status in ("ok", "note")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert str(tmp_path) in result_in_a_new_process(checks.temporary).text
    assert list(tmp_path.iterdir()) == []


# A machine without one of our packages: Python runs this before anything else.
_WITHOUT_S3FS = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "s3fs":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
"""


def test_a_package_that_is_missing_names_its_extra(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT_S3FS)
    monkeypatch.syspath_prepend(tmp_path)
    result = result_in_a_new_process(checks.writable, "s3://bucket/cache", "--cache")
    assert result == CheckResult(
        "problem",
        "s3fs is not installed; it comes with the extra 's3': pip install 'tango-video[s3]'",
    )


def test_a_store_is_asked_and_not_created(tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    created = CheckResult("ok", f"{uri} will be created by the first run")
    assert result_of(checks.tracking, uri) == created
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mlflow.db").write_bytes(b"no database " * 100)
    assert result_of(checks.tracking, uri).status == "problem"


class Other(BaseHTTPRequestHandler):
    """A server of another kind."""

    def do_POST(self):
        self.send_error(404)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_):
        pass


def test_a_server_that_is_none_of_mlflow_is_a_problem():
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        result = result_of(checks.tracking, uri, timeout_s=8)
    assert result.status == "problem"
    assert "within 8 s" in result.text
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        result = result_of(checks.tracking, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert result.status == "problem"
    assert "404" in result.text


def test_an_address_without_a_cluster_is_a_problem():
    result = result_in_a_new_process(checks.ray_pools, None, "127.0.0.1:1")
    assert result.status == "problem"
    assert "no Ray cluster at --address 127.0.0.1:1" in result.text


@pytest.mark.ray
def test_pools_are_compared_with_a_cluster(local_ray):
    import ray

    address = ray.get_runtime_context().gcs_address
    result = result_of(checks.ray_pools, None, address)
    assert result.status == "ok", result
    assert f"{address} has 4 CPUs and 0 GPUs on 1 node(s)" in result.text
    assert "pools fit" in result_of(checks.ray_pools, job(executor="ray"), address).text
    pools = {"compress": {"num_actors": 5, "num_cpus": 1}}
    result = result_of(checks.ray_pools, job(executor="ray", pools=pools), address)
    assert result.status == "problem"
    assert "lower pools.compress.num_actors" in result.text


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("bytes", "model.safetensors is damaged"),
        ("vision_tower", "does not fit its config.json: it lacks"),
        ("language_model", "does not fit its config.json: it lacks"),
    ],
)
def test_a_damaged_checkpoint_is_a_problem(tmp_path, lost, said):
    broken = tmp_path / "broken"
    shutil.copytree(describe_model("tiny").path, broken)
    weights = broken / "model.safetensors"
    if lost == "bytes":
        weights.write_bytes(weights.read_bytes()[:100_000])
    else:
        tensors = load_file(weights)
        del tensors[next(name for name in tensors if lost in name)]
        save_file(tensors, weights)
    result = result_of(checks.model, job(model={"path": str(broken)}))
    assert result.status == "problem"
    assert said in result.text


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
    wanted = [
        Check("model", checks.model, (remote,), timeout_s=120),
        Check("methods", checks.methods, (remote, "cache"), timeout_s=120),
    ]
    result, methods = (result for _, result in run_checks(wanted))
    assert methods.status == "note"
    return result


@pytest.mark.slow
def test_a_hub_checkpoint_is_to_be_downloaded(monkeypatch, tmp_path):
    result = hub_results(monkeypatch, tmp_path, "1")
    assert result.status == "problem"
    assert f"{LLAVA} and {SIGLIP}" in result.text
    assert f"tango model get {SIGLIP}" in result.text
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


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Installs a package `other` with the given lines of metadata."""

    def install(*lines):
        folder = tmp_path / "other-1.0.dist-info"
        folder.mkdir()
        text = ["Metadata-Version: 2.1", "Name: other", "Version: 1.0", *lines]
        (folder / "METADATA").write_text("\n".join(text) + "\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_this_installation_is_in_its_ranges():
    result = result_of(checks.packages)
    assert result.status == "ok", result
    assert "tango-video" in result.text


def test_packages_that_are_too_old_or_missing_are_named(other):
    other(
        "Requires-Dist: numpy<1",
        "Requires-Dist: no-such-package>=2",
        "Requires-Dist: nor-this; extra == 'dev'",
        "Requires-Dist: nor-that; platform_system == 'Amiga'",
        "Requires-Dist: pytest<1; extra == 'torchcodec'",
        "Requires-Dist: not-there; extra == 'pipeline'",
    )
    result = result_in_a_new_process(checks.packages, "other")
    assert result.status == "problem"
    assert "numpy " in result.text
    assert "is not <1; no-such-package is missing (wanted: >=2); pytest" in result.text
    assert "1 more" in result.text
    assert "nor" not in result.text
    assert "pip install" in result.text


def test_a_package_that_is_not_installed_is_a_problem():
    assert "no-such-package" in result_of(checks.packages, "no-such-package").text


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_models_run_on_the_cpu():
    assert torch.__version__ in result_of(checks.accelerators).text


@pytest.mark.gpu
def test_a_gpu_is_named_with_its_memory():
    result = result_of(checks.accelerators)
    assert result.status == "ok"
    assert torch.cuda.get_device_name() in result.text
    assert "bfloat16" in result.text


def test_cpus_are_counted_as_ray_counts_them(monkeypatch):
    from ray._private import utils

    # Ray does not see that a process is bound to some of them, as these tests may be.
    everything = set(range(os.cpu_count()))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: everything, raising=False)
    assert checks.num_cpus() == utils.get_num_cpus(override_docker_cpu_warning=True)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "max 100000\n"}, os.cpu_count()),
        ({"cpu.max": "² 100000\n"}, os.cpu_count()),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, os.cpu_count()),
        ({}, os.cpu_count()),
    ],
)
def test_a_container_has_the_cpus_of_its_quota(tmp_path, files, cpus, monkeypatch):
    everything = set(range(os.cpu_count() if cpus == os.cpu_count() else 64))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: everything, raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert checks.num_cpus(tmp_path) == cpus
    assert checks.cpus(tmp_path).status in ("ok", "note")


def test_a_process_that_is_bound_has_no_more_cpus(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert checks.cpus(tmp_path).text.startswith("2 of the machine's 128")
    (tmp_path / "cpu.max").write_text("100000 100000")
    assert checks.num_cpus(tmp_path) == 1


def test_a_container_has_the_memory_of_its_limit(tmp_path):
    (tmp_path / "memory.max").write_text("3000000000\n")
    (tmp_path / "memory.current").write_text("1000000000\n")
    assert checks.available_memory(tmp_path) == (3 * 10**9, 2 * 10**9)
    (tmp_path / "memory.max").write_text("max\n")
    assert checks.available_memory(tmp_path)[0] > 3 * 10**9


@pytest.mark.parametrize("name", ["decord", "pyav", "torchcodec"])
def test_a_decoder_reads_exactly_or_is_not_installed(name):
    result = result_of(checks.video_decoder, name)
    assert result.status == "ok"
    try:
        assert decoder_versions(name) in result.text
    except DecoderUnavailableError:
        assert "not installed" in result.text
        chosen = result_of(checks.video_decoder, name, name)
        assert chosen.status == "problem"
        assert f"decoder '{name}'" in chosen.text


def test_an_unknown_decoder_is_a_problem():
    result = result_of(checks.video_decoder, "vlc")
    assert result.status == "problem"
    assert "unknown decoder 'vlc'; choose one of" in result.text


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
        Check("works", checks.memory),
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


def test_a_result_is_one_line():
    out = io.StringIO()
    result = CheckResult("problem", f"[{'word ' * 40}]\nend")
    print_result("embedded model", result, Console(file=out, width=80))
    (line,) = out.getvalue().splitlines()
    assert line.startswith("problem embedded model [word")
    assert line.endswith("] end")


def test_the_command_imports_no_library_that_it_checks():
    code = (
        "import sys, jobs.doctor.command\n"
        "print(sorted({'torch', 'ray', 'transformers', 'mlflow', 'av'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"
