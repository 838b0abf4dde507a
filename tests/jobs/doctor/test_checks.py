"""What `tango doctor` looks at, each in a good and a bad state."""

from __future__ import annotations

import io
import os
import shutil
import socket
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from operator import getitem
from pathlib import Path

import numpy as np
import pytest
import torch
from fresh_python import printed_by
from releases import videomme_release
from rich.console import Console
from safetensors.torch import load_file, save_file

from jobs.config.recipe import parse_job
from jobs.doctor import decoding, machine, recipe, services, storage
from jobs.doctor.checks import Check, Remark, examine, print_remark
from tango_core.models import describe_model
from tango_core.video import DecoderUnavailableError, FrameSpec, decode_frames, decoder_versions


def job(**changes):
    content = {
        "benchmark": {"name": "shapes"},
        "method": {"name": "tango", "retention": 0.1},
        "executor": "local",
        **changes,
    }
    return parse_job(content, "test")


def looked(look, *args, limit_s=60.0) -> Remark:
    """The remark of one check, as the command gets it."""
    ((_, remark),) = examine([Check("it", look, args, limit_s)])
    return remark


class TestExamine:
    def test_whatever_a_check_does_becomes_a_line_and_the_next_one_runs(self):
        checks = [
            Check("raises", int, ("x",)),
            Check("surprises", getitem, ({}, "key")),
            Check("crashes", os.abort),
            Check("leaves", os._exit, (3,)),
            Check("hangs", time.sleep, (60,), limit_s=0.5),
            Check("works", machine.memory),
        ]
        remarks = dict(examine(checks))
        assert [remarks[check.subject].mark for check in checks[:-1]] == ["problem"] * 5
        assert remarks["raises"].text.startswith("invalid literal")
        assert remarks["surprises"].text == "KeyError: 'key'"
        assert "SIGABRT" in remarks["crashes"].text
        assert "status 3" in remarks["leaves"].text
        assert "no result from the check within 0.5 s" in remarks["hangs"].text
        assert remarks["works"].mark != "problem"

    @pytest.mark.parametrize("terminal", [True, False])
    def test_a_line_is_wrapped_beside_its_subject_on_a_terminal_only(self, terminal):
        out = io.StringIO()
        console = Console(file=out, width=80, force_terminal=terminal, color_system=None)
        print_remark("embedded model", Remark("problem", f"[{'word ' * 40}]\nend"), console)
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= 80 or not terminal
        assert len(lines) == 1 or terminal
        assert lines[0].startswith("problem embedded model [word")
        assert all(line.startswith(" " * 23) for line in lines[1:])
        assert lines[-1].rstrip().endswith("] end")


class TestMachine:
    @pytest.fixture
    def other(self, tmp_path, monkeypatch):
        """Installs a package `other` with the given lines of metadata."""

        def install(*lines):
            folder = tmp_path / "other-1.0.dist-info"
            folder.mkdir()
            text = ["Metadata-Version: 2.1", "Name: other", "Version: 1.0", *lines]
            (folder / "METADATA").write_text("\n".join(text) + "\n")
            monkeypatch.syspath_prepend(str(tmp_path))

        return install

    def test_this_installation_is_in_its_ranges(self):
        assert looked(machine.python_version).mark == "ok"
        remark = looked(machine.packages)
        assert remark.mark == "ok", remark
        assert "tango-video" in remark.text

    def test_packages_that_are_too_old_or_missing_are_named(self, other):
        other(
            "Requires-Dist: numpy<1",
            "Requires-Dist: no-such-package>=2",
            "Requires-Dist: nor-this; extra == 'dev'",
            "Requires-Dist: nor-that; platform_system == 'Amiga'",
            "Requires-Dist: pytest<1; extra == 'torchcodec'",
            "Requires-Dist: not-there; extra == 'pipeline'",
        )
        remark = looked(machine.packages, "other")
        assert remark.mark == "problem"
        assert "numpy " in remark.text
        assert "is not <1; no-such-package is missing (wanted: >=2); pytest" in remark.text
        assert "1 more" in remark.text
        assert "nor" not in remark.text
        assert "pip install" in remark.text

    def test_another_python_is_refused(self, other):
        other("Requires-Python: <3")
        remark = looked(machine.python_version, "other")
        assert remark.mark == "problem"
        assert "is not <3" in remark.text

    def test_a_package_that_is_not_installed_is_a_problem(self):
        assert "no-such-package" in looked(machine.packages, "no-such-package").text

    @pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
    def test_without_a_gpu_models_run_on_the_cpu(self):
        assert torch.__version__ in looked(machine.accelerators).text

    @pytest.mark.gpu
    def test_a_gpu_is_named_with_its_memory(self):
        remark = looked(machine.accelerators)
        assert remark.mark == "ok"
        assert torch.cuda.get_device_name() in remark.text
        assert "bfloat16" in remark.text

    def test_cpus_and_objects_are_counted_as_ray_counts_them(self):
        from ray._private.utils import get_num_cpus, resolve_object_store_memory

        assert machine.num_cpus() == get_num_cpus(override_docker_cpu_warning=True)
        free, (_, available) = shutil.disk_usage("/dev/shm").free, machine.available_memory()
        for some in (available, 10**9, 10**11, 10**13):
            ours = machine.object_store(free, some)
            # Between two looks at it the free space of /dev/shm may change.
            assert ours == pytest.approx(resolve_object_store_memory(some), rel=0.01)

    @pytest.mark.parametrize(
        ("files", "cpus"),
        [
            ({"cpu.max": "150000 100000\n"}, 1),
            ({"cpu.max": "50000 100000\n"}, 1),
            ({"cpu.max": "400000 100000\n"}, 4),
            ({"cpu.max": "max 100000\n"}, os.cpu_count()),
            ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
            ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, os.cpu_count()),
            ({"cpuset/cpuset.cpus": "0-1,4,6-9\n", "cpu.max": "800000 100000"}, 7),
            ({}, os.cpu_count()),
        ],
    )
    def test_a_container_has_the_cpus_of_its_quota(self, tmp_path, files, cpus):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        assert machine.num_cpus(tmp_path) == cpus
        assert machine.processors(tmp_path).mark in ("ok", "note")

    def test_a_process_bound_to_fewer_cpus_than_ray_counts_is_told(self, tmp_path):
        (tmp_path / "cpu.max").write_text("100000000 100000")
        remark = machine.processors(tmp_path)
        assert remark.mark == "note"
        assert "Ray counts 1000" in remark.text

    def test_a_container_has_the_memory_of_its_limit(self, tmp_path):
        (tmp_path / "memory.max").write_text("3000000000\n")
        (tmp_path / "memory.current").write_text("1000000000\n")
        assert machine.available_memory(tmp_path) == (3 * 10**9, 2 * 10**9)
        (tmp_path / "memory.max").write_text("max\n")
        assert machine.available_memory(tmp_path)[0] > 3 * 10**9

    def test_a_machine_without_shared_memory_is_none_of_rays_concern(self, tmp_path):
        assert machine.shared_memory(tmp_path / "none").mark == "ok"
        assert "free, Ray takes" in machine.shared_memory(Path("/dev/shm")).text


class TestPlaces:
    def test_a_place_is_tried_and_left_as_it_was(self, tmp_path):
        for location in (tmp_path, tmp_path / "a" / "b"):
            assert looked(storage.place, str(location), "--output").mark in ("ok", "note")
        assert list(tmp_path.iterdir()) == []

    def test_urls_are_tried_too(self, tmp_path):
        assert looked(storage.place, "memory://bucket/cache", "--cache").mark == "ok"
        remark = looked(storage.place, "nonsense://bucket", "--cache")
        assert remark.mark == "problem"
        assert "nonsense://bucket" in remark.text

    def test_a_file_in_the_way_is_a_problem(self, tmp_path):
        (tmp_path / "file").write_text("here")
        remark = looked(storage.place, str(tmp_path / "file" / "runs"), "--output")
        assert remark == Remark(
            "problem", f"{tmp_path / 'file'} is not a directory; choose another --output"
        )

    @pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
    def test_a_place_that_nobody_can_write_to_is_a_problem(self):
        remark = looked(storage.place, "/proc/runs", "--output")
        assert remark.mark == "problem"
        assert "/proc cannot be written to" in remark.text
        assert "--output" in remark.text

    def test_temporary_files_can_be_written_here_and_not_elsewhere(self, monkeypatch, tmp_path):
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        assert str(tmp_path) in looked(storage.temporary).text
        assert list(tmp_path.iterdir()) == []


class TestReading:
    @pytest.mark.parametrize("name", ["decord", "pyav", "torchcodec"])
    def test_a_decoder_reads_exactly_or_is_not_installed(self, name):
        remark = looked(decoding.decoder, name)
        assert remark.mark == "ok"
        try:
            assert decoder_versions(name) in remark.text
        except DecoderUnavailableError:
            assert "not installed" in remark.text
            chosen = looked(decoding.decoder, name, name)
            assert chosen.mark == "problem"
            assert f"decoder '{name}'" in chosen.text

    def test_an_unknown_decoder_is_a_problem(self):
        remark = looked(decoding.decoder, "vlc")
        assert remark.mark == "problem"
        assert "unknown decoder 'vlc'; choose one of" in remark.text

    def test_neighbouring_frames_are_not_taken_for_the_right_ones(self):
        with decoding.grey_clip() as (path, levels):
            frames = decode_frames(str(path), FrameSpec(num_frames=6))
        assert decoding.shows(frames, levels)
        shifted = replace(frames, timestamps=frames.timestamps + 1)
        assert not decoding.shows(shifted, np.append(levels, 0))
        assert not decoding.shows(replace(frames, timestamps=frames.timestamps[[0] * 6]), levels)

    def test_the_embedded_model_answers(self):
        remark = looked(decoding.embedded_model)
        assert remark.mark == "ok"
        assert remark.text.endswith("right")


class TestRecipe:
    def test_the_embedded_checkpoint_is_complete(self):
        remark = looked(recipe.model, job())
        assert remark.mark == "ok"
        assert "tiny, 8 frames, float32" in remark.text
        assert remark.text.endswith("MB, complete")

    def test_a_damaged_checkpoint_is_a_problem(self, tmp_path):
        broken = tmp_path / "broken"
        shutil.copytree(describe_model("tiny").path, broken)
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:100_000])
        remark = looked(recipe.model, job(model={"path": str(broken)}))
        assert remark.mark == "problem"
        assert "model.safetensors is damaged" in remark.text

    @pytest.mark.parametrize("half", ["vision_tower", "language_model"])
    def test_a_checkpoint_that_lacks_a_tensor_is_a_problem(self, tmp_path, half):
        broken = tmp_path / "broken"
        shutil.copytree(describe_model("tiny").path, broken)
        tensors = load_file(broken / "model.safetensors")
        lost = next(name for name in tensors if half in name)
        save_file({n: v for n, v in tensors.items() if n != lost}, broken / "model.safetensors")
        remark = looked(recipe.model, job(model={"path": str(broken)}))
        assert remark.mark == "problem"
        assert "does not fit its config.json: it lacks" in remark.text

    def test_a_missing_checkpoint_is_one_problem_and_not_two(self):
        absent = job(model={"name": "llava-onevision-7b", "path": "/no/such"})
        assert looked(recipe.model, absent).text.startswith("model.path /no/such is neither")
        assert looked(recipe.methods, absent, "cache").mark == "note"

    @pytest.mark.parametrize(("offline", "mark"), [("1", "problem"), ("0", "note")])
    def test_a_hub_checkpoint_is_to_be_downloaded(self, monkeypatch, tmp_path, offline, mark):
        monkeypatch.setenv("HF_HUB_OFFLINE", offline)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        remote = job(model={"name": "llava-onevision-7b", "saliency_from": "google/none"})
        remark = looked(recipe.model, remote)
        assert remark.mark == mark
        assert "llava-hf/llava-onevision-qwen2-7b-ov-hf and google/none" in remark.text
        assert "hf download google/none" in remark.text
        assert looked(recipe.methods, remote, "cache").mark == "note"

    def test_methods_are_built_for_the_model(self):
        several = job(method=None, methods=[{"name": "full"}, {"name": "dart", "retention": 0.6}])
        assert looked(recipe.methods, several, "cache") == Remark("ok", "2 with 1 token cache(s)")
        deep = {"name": "fastv", "retention": 0.2}
        remark = looked(recipe.methods, job(method=deep), "cache")
        assert remark.mark == "problem"
        assert "cannot be reached with layer=2" in remark.text
        methods = [{"name": "full"}, deep]
        skipped = job(method=None, methods=methods, infeasible="skip")
        remark = looked(recipe.methods, skipped, "cache")
        assert remark.mark == "note"
        assert "fastv r=0.2" in remark.text

    def test_a_wrong_option_of_a_method_is_a_problem(self):
        remark = looked(recipe.methods, job(method={"name": "tango", "alhpa": 1}), "cache")
        assert remark.mark == "problem"
        assert "did you mean 'alpha'?" in remark.text

    def test_annotations_are_found_or_missed(self, tmp_path):
        videomme_release(tmp_path)
        (there,) = job(benchmark={"name": "videomme", "root": str(tmp_path)}).all_benchmarks
        remark = looked(recipe.benchmark, there)
        assert remark.mark == "ok"
        assert f"tango data check videomme {tmp_path}" in remark.text
        remark = looked(recipe.benchmark, replace(there, root=str(tmp_path / "none")))
        assert remark.mark == "problem"
        assert "is not a folder" in remark.text

    def test_generated_clips_need_a_place(self, tmp_path):
        (here,) = job(benchmark={"name": "shapes", "root": str(tmp_path)}).all_benchmarks
        assert looked(recipe.benchmark, here).mark in ("ok", "note")
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "file").write_text("here")
        remark = looked(recipe.benchmark, replace(here, root=str(tmp_path / "file")))
        assert remark.mark == "problem"
        assert "benchmark.root" in remark.text


class TestServices:
    def test_a_store_that_is_not_there_is_left_so(self, tmp_path):
        uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
        assert looked(services.tracking, uri) == Remark("ok", f"{uri} is made with the first run")
        assert list(tmp_path.iterdir()) == []

    def test_a_store_of_another_program_is_a_problem(self, tmp_path):
        (tmp_path / "mlflow.db").write_bytes(b"no database " * 100)
        remark = looked(services.tracking, f"sqlite:///{tmp_path / 'mlflow.db'}")
        assert remark.mark == "problem"

    def test_the_retired_file_store_is_a_problem(self):
        remark = looked(services.tracking, "runs/mlruns")
        assert remark.mark == "problem"
        assert "retired file store" in remark.text

    def test_a_port_that_nobody_listens_at_is_a_problem(self):
        remark = looked(services.tracking, "http://127.0.0.1:1")
        assert remark.mark == "problem"
        assert "nothing listens at 127.0.0.1:1" in remark.text
        assert "log-run" in remark.text

    def test_a_server_that_stays_silent_is_given_up(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            uri = f"http://127.0.0.1:{server.getsockname()[1]}"
            started = time.monotonic()
            remark = looked(services.tracking, uri, limit_s=8)
        assert remark.mark == "problem"
        assert "within 8 s" in remark.text
        assert time.monotonic() - started < 30

    def test_a_server_of_another_kind_is_a_problem(self):
        class Other(BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_error(404)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Other)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            remark = looked(services.tracking, f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
        assert remark.mark == "problem"
        assert "404" in remark.text

    def test_a_plain_loop_needs_no_ray(self):
        assert looked(services.workers, job(), None).text == "not used: one process on the CPU"
        assert looked(services.workers, job(), "127.0.0.1:1").mark == "note"
        profile = job(executor="ray", mode="profile")
        assert looked(services.workers, profile, None).text.startswith("not used")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
    def test_a_gpu_that_is_not_there_is_a_problem(self):
        remark = looked(services.workers, job(model={"device": "cuda"}), None)
        assert remark.mark == "problem"
        assert "model.device is cuda" in remark.text
        pools = {"answer": {"num_actors": 1, "num_gpus": 1}}
        remark = looked(services.workers, job(executor="ray", pools=pools), None)
        assert remark.mark == "problem"
        assert "lower pools.answer.num_actors" in remark.text

    def test_pools_are_compared_with_this_machine(self):
        assert "pools fit" in looked(services.workers, job(executor="ray"), None).text
        pools = {"decode": {"num_cpus": 4096}}
        remark = looked(services.workers, job(executor="ray", pools=pools), None)
        assert remark.mark == "problem"
        assert "pools.decode.num_cpus" in remark.text

    def test_an_address_without_a_cluster_is_a_problem(self):
        remark = looked(services.workers, None, "127.0.0.1:1")
        assert remark.mark == "problem"
        assert "no Ray cluster at --address 127.0.0.1:1" in remark.text

    @pytest.mark.ray
    def test_pools_are_compared_with_a_cluster(self, local_ray):
        import ray

        address = ray.get_runtime_context().gcs_address
        remark = looked(services.workers, None, address)
        assert remark.mark == "ok", remark
        assert f"{address} has 4 CPUs and 0 GPUs on 1 node(s)" in remark.text
        assert "pools fit" in looked(services.workers, job(executor="ray"), address).text
        pools = {"compress": {"num_actors": 5, "num_cpus": 1}}
        remark = looked(services.workers, job(executor="ray", pools=pools), address)
        assert remark.mark == "problem"
        assert "lower pools.compress.num_actors" in remark.text


def test_checks_start_without_what_they_look_at():
    code = (
        "import sys, jobs.doctor.command\n"
        "print(sorted({'torch', 'ray', 'transformers', 'mlflow', 'av'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"
