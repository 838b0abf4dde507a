"""Checks of Python, packages, GPUs, CPUs, memory, video decoders and the embedded model."""

from __future__ import annotations

import os

import pytest
import torch
from doctor_results import result_in_a_new_process, result_of

from jobs.doctor import checks
from tango_core.video import DecoderUnavailableError, decoder_versions


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
        ({"cpuset/cpuset.cpus": "0-1,4,6-9\n", "cpu.max": "800000 100000"}, 7),
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
