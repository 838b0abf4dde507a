"""Checks of MLflow and Ray."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch
from doctor_results import job, result_of

from jobs.doctor import recipe as services
from jobs.doctor.checks import CheckResult


def test_a_missing_store_is_not_created(tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert result_of(services.tracking, uri) == CheckResult(
        "ok", f"{uri} will be created by the first run"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_another_program_is_a_problem(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"no database " * 100)
    result = result_of(services.tracking, f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert result.status == "problem"


def test_the_retired_file_store_is_a_problem():
    result = result_of(services.tracking, "runs/mlruns")
    assert result.status == "problem"
    assert "retired file store" in result.text


def test_a_port_without_a_server_is_a_problem():
    result = result_of(services.tracking, "http://127.0.0.1:1")
    assert result.status == "problem"
    assert "nothing listens at 127.0.0.1:1" in result.text
    assert "log-run" in result.text


def test_a_server_that_does_not_answer_is_a_problem():
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        result = result_of(services.tracking, uri, timeout_s=8)
    assert result.status == "problem"
    assert "within 8 s" in result.text


def test_a_server_of_another_kind_is_a_problem():
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
        result = result_of(services.tracking, f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert result.status == "problem"
    assert "404" in result.text


def test_the_local_executor_needs_no_ray():
    assert result_of(services.ray_pools, job(), None).text == "not used: one process on the CPU"
    assert result_of(services.ray_pools, job(), "127.0.0.1:1").status == "note"
    profile = job(executor="ray", mode="profile")
    assert result_of(services.ray_pools, profile, None).text.startswith("not used")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_gpu_that_is_not_there_is_a_problem():
    result = result_of(services.ray_pools, job(model={"device": "cuda"}), None)
    assert result.status == "problem"
    assert "model.device is cuda" in result.text
    pools = {"answer": {"num_actors": 1, "num_gpus": 1}}
    result = result_of(services.ray_pools, job(executor="ray", pools=pools), None)
    assert result.status == "problem"
    assert "lower pools.answer.num_actors" in result.text


def test_pools_are_compared_with_this_machine():
    assert "pools fit" in result_of(services.ray_pools, job(executor="ray"), None).text
    pools = {"decode": {"num_cpus": 4096}}
    result = result_of(services.ray_pools, job(executor="ray", pools=pools), None)
    assert result.status == "problem"
    assert "pools.decode.num_cpus" in result.text


def test_an_address_without_a_cluster_is_a_problem():
    result = result_of(services.ray_pools, None, "127.0.0.1:1")
    assert result.status == "problem"
    assert "no Ray cluster at --address 127.0.0.1:1" in result.text


@pytest.mark.ray
def test_pools_are_compared_with_a_cluster(local_ray):
    import ray

    address = ray.get_runtime_context().gcs_address
    result = result_of(services.ray_pools, None, address)
    assert result.status == "ok", result
    assert f"{address} has 4 CPUs and 0 GPUs on 1 node(s)" in result.text
    assert "pools fit" in result_of(services.ray_pools, job(executor="ray"), address).text
    pools = {"compress": {"num_actors": 5, "num_cpus": 1}}
    result = result_of(services.ray_pools, job(executor="ray", pools=pools), address)
    assert result.status == "problem"
    assert "lower pools.compress.num_actors" in result.text
