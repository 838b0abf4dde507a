"""What a recipe leaves open is filled in, and what its model cannot run is skipped."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import pytest
import torch
from internvl_checkpoints import build_internvl, save_internvl
from llava_checkpoints import build_llava, save_llava
from llava_originals import build_original, save_original
from qwen3_checkpoints import build_qwen3, save_qwen3
from qwen_checkpoints import build_qwen, save_qwen
from releases import mlvu_release, videomme_release

from jobs.config.recipe import Job, parse_job
from jobs.run.build import build, executor_of, make_settings
from pipeline.executors import cluster
from pipeline.resources.pools import placed
from tango_core.errors import InputError


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Model name -> directory."""
    place = tmp_path_factory.mktemp("checkpoints")
    for name in ("onevision", "video", "qwen"):
        (place / name).mkdir()
    save_original(build_original(), place / "video")
    return {
        "llava-onevision-7b": str(save_llava(build_llava(), place / "onevision")),
        "llava-video-7b": str(place / "video"),
        "qwen2.5-vl-7b": str(save_qwen(build_qwen(), place / "qwen")),
        "qwen3-vl-8b": str(save_qwen3(build_qwen3(), place / "qwen3")),
        "internvl3.5-8b": str(save_internvl(build_internvl(), place / "internvl")),
    }


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Directory with the releases of two benchmarks."""
    root = tmp_path_factory.mktemp("releases")
    videomme_release(root)
    mlvu_release(root)
    return str(root)


def described(checkpoints, releases, name, protocols, **settings):
    """The model of a job with one benchmark per protocol."""
    benchmarks = [
        {"name": benchmark, "root": releases, "protocol": protocol}
        for benchmark, protocol in zip(("videomme", "mlvu"), protocols, strict=False)
    ]
    recipe = {
        "benchmarks": benchmarks,
        "model": {"name": name, "path": checkpoints[name], **settings},
        "methods": [{"name": "full"}],
    }
    return build(parse_job(recipe, "test")).model


@pytest.mark.parametrize(
    ("name", "protocol", "sampling", "wording"),
    [
        ("llava-onevision-7b", "vlmevalkit", "truncate", "none"),
        ("llava-video-7b", "vlmevalkit", "truncate", "vlmevalkit"),
        ("llava-video-7b", "lmms_eval", "per_second", "none"),
        ("llava-video-7b", "lmms_eval_llava_vid", "per_second", "none"),
        ("qwen2.5-vl-7b", "vlmevalkit", "round", "none"),
        ("qwen2.5-vl-7b", "lmms_eval", "thinned", "none"),
        ("qwen3-vl-8b", "vlmevalkit", "round", "none"),
        ("llava-video-7b", "vlmevalkit@2026-05", "truncate", "vlmevalkit"),
        ("llava-video-7b", "lmms_eval@2024-10", "per_second", "none"),
        ("qwen2.5-vl-7b", "lmms_eval@0.7.3", "thinned", "none"),
        ("internvl3.5-8b", "vlmevalkit@2026-05", "inner", "vlmevalkit"),
        ("internvl3.5-8b", "lmms_eval", "middles", "lmms_eval"),
    ],
)
def test_a_protocol_shows_a_model_the_frames_of_its_harness(
    checkpoints, releases, name, protocol, sampling, wording
):
    model = described(checkpoints, releases, name, [protocol])
    options = asdict(model.options)
    told = options.get("time_instruction") or options.get("frame_label", "none")
    assert (model.frames.sampling, told) == (sampling, wording)


def test_two_protocols_that_need_other_frames_are_two_jobs(checkpoints, releases):
    both = ["vlmevalkit", "lmms_eval"]
    message = (
        r"protocols vlmevalkit and lmms_eval use different frames with model qwen2\.5-vl-7b; run "
        r"their benchmarks separately, or set model\.sampling for all of them"
    )
    with pytest.raises(InputError, match=message):
        described(checkpoints, releases, "qwen2.5-vl-7b", both)
    with pytest.raises(InputError, match=r"set model\.sampling and model\.time_instruction"):
        described(checkpoints, releases, "llava-video-7b", both)
    model = described(checkpoints, releases, "qwen2.5-vl-7b", both, sampling="round")
    assert model.frames.sampling == "round"


FITS = {"name": "topk", "retention": 0.1}
TOO_DEEP = {"name": "fastv", "retention": [0.2, 0.6], "layer": 2}
REASON = "retention 0.2 cannot be reached with layer=2: all tokens in 2 of 4 layers average to 0.5"


def on_four_layers(*methods, **changes):
    """A job on the embedded model, built."""
    recipe = {"benchmark": {"name": "shapes"}, "methods": list(methods), **changes}
    return build(parse_job(recipe, "test"))


def test_a_method_that_does_not_fit_the_model_ends_the_job():
    message = rf"method 'fastv r=0\.2 layer=2': {re.escape(REASON)}.*set infeasible to skip"
    with pytest.raises(InputError, match=message):
        on_four_layers(FITS, TOO_DEEP)


def test_a_method_that_does_not_fit_the_model_is_skipped_with_a_warning(caplog):
    built = on_four_layers(FITS, TOO_DEEP, infeasible="skip")
    assert [name for name, _ in built.methods] == ["topk r=0.1", "fastv r=0.6 layer=2"]
    (entry,) = built.skipped
    assert (entry.name, entry.method, entry.retention) == ("fastv r=0.2 layer=2", "fastv", 0.2)
    assert entry.reason.startswith(REASON)
    (line,) = caplog.messages
    assert line == (
        f"method 'fastv r=0.2 layer=2' at retention 0.2 is skipped on model tiny: {entry.reason}"
    )


def test_a_mistake_is_no_method_that_does_not_fit():
    with pytest.raises(InputError, match=r"retention must be in \(0, 1\], got 2"):
        on_four_layers(FITS, {"name": "fastv", "retention": 2}, infeasible="skip")
    with pytest.raises(InputError, match="did you mean 'layer'"):
        on_four_layers(FITS, {"name": "fastv", "retention": 0.2, "leyer": 2}, infeasible="skip")


@pytest.mark.parametrize(("name", "options"), [("fastv", {"layer": 2}), ("fastvid", {})])
def test_a_method_that_only_the_native_engine_runs_is_refused_on_vllm(name, options):
    method = {"name": name, "retention": 0.6, **options}
    on_four_layers(FITS, method)
    with pytest.raises(InputError, match=rf"method '{name}.*set engine to native"):
        on_four_layers(FITS, method, engine="vllm")


BOTH = {"compress": {"num_gpus": 1}, "answer": {"num_gpus": 1}}
ENCODER_ALONE = {"compress": {"num_gpus": 0.5}}
SEVERAL = {"answer": {"num_actors": 2}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint whose own dtype is bfloat16."""
    path = save_llava(build_llava(), tmp_path_factory.mktemp("bfloat16") / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return path


@pytest.fixture
def host(monkeypatch):
    """Decides what this host has."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    return lambda gpus: monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)


@pytest.fixture
def nodes(monkeypatch):
    """Decides what the cluster has; nothing is joined."""

    class Joined:
        def __init__(self, found):
            self.found = found

        def __enter__(self):
            return self.found

        def __exit__(self, *_):
            return None

    def has(*found):
        monkeypatch.setattr(cluster, "connected", lambda *_: Joined(list(found)))

    return has


def recipe(checkpoint, **changes) -> Job:
    content = {
        "benchmark": {"name": "shapes"},
        "methods": [{"name": "full"}],
        "model": {"name": "llava-onevision-7b", "path": str(checkpoint)},
        **changes,
    }
    return parse_job(content, "test")


def devices(job: Job, address: str | None = None, executor: str = "ray"):
    """The dtype of the plan, and where each half is loaded."""
    model = build(job, address).model
    settings = make_settings(job, address, executor, job.pools)
    found = [placed(model, settings, stage) for stage in ("compress", "answer")]
    assert {one.dtype for one in found} == {model.dtype}
    return model.dtype, *(one.device for one in found)


@pytest.mark.parametrize("gpus_here", [False, True])
@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        (BOTH, ("bfloat16", "cuda", "cuda")),
        (ENCODER_ALONE, ("bfloat16", "cuda", "cpu")),
        (SEVERAL, ("float32", "cpu", "cpu")),
        ({}, ("float32", "cpu", "cpu")),
    ],
)
def test_on_ray_the_pools_decide_and_not_the_host(checkpoint, host, gpus_here, pools, expected):
    host(gpus_here)
    assert devices(recipe(checkpoint, executor="ray", pools=pools)) == expected


@pytest.mark.parametrize(("gpus_here", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_in_a_loop_and_on_a_ray_of_its_own_this_process_decides(checkpoint, host, gpus_here, dtype):
    host(gpus_here)
    for pools in ({}, BOTH):
        job = recipe(checkpoint, executor="local", pools=pools)
        assert devices(job, executor="local") == (dtype, "auto", "auto")
    assert build(recipe(checkpoint, executor="ray", pools="auto")).model.dtype == dtype


@pytest.mark.parametrize("gpus_here", [False, True])
@pytest.mark.parametrize(("gpus_there", "dtype"), [(0.0, "float32"), (4.0, "bfloat16")])
def test_pools_auto_ask_the_cluster(checkpoint, host, nodes, gpus_here, gpus_there, dtype):
    """A head with CPUs alone plans for workers with GPUs."""
    host(gpus_here)
    nodes({"CPU": 8.0}, {"CPU": 8.0, "GPU": gpus_there})
    job = recipe(checkpoint, pools="auto")
    assert build(job, "head:6379").model.dtype == dtype


def test_an_open_executor_becomes_the_loop_where_only_the_loop_would_use_the_gpu(checkpoint, host):
    host(True)
    choice = executor_of(recipe(checkpoint), None, 10**6)
    assert choice.executor == "local"
    assert "pools.compress.num_gpus" in choice.reason
    for job in (recipe(checkpoint, pools=BOTH), recipe(checkpoint, pools="auto")):
        assert executor_of(job, None, 10**6).executor == "ray"
    assert executor_of(recipe(checkpoint), "head:6379", 10**6).executor == "ray"
    host(False)
    assert executor_of(recipe(checkpoint), None, 10**6).executor == "ray"
