"""What MLflow holds after a run was logged, read back through its own client and over HTTP."""

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_answers import cell, facts_of, fake_answers, write_run

from jobs.report.compare import write_report
from jobs.results.cell_summary import CellSummary
from jobs.tracking.contents import cell_metrics
from jobs.tracking.runs import (
    TrackingError,
    default_tracking_uri,
    log_run,
    raise_if_unreachable,
)

TANGO = cell("tango", 0.1)


def finished_run(folder, *cells, **changes):
    facts = facts_of(*cells, run_id=folder.name, **changes)
    answers = fake_answers(facts, num_clips=12, failed_clips=(1,), unparsed=0.1)
    write_run(folder, answers, facts)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def one_cell(tmp_path_factory):
    """A finished run of one cell; do not write to it."""
    return finished_run(tmp_path_factory.mktemp("one") / "run", TANGO)


@pytest.fixture(scope="module")
def logged_sweep(tmp_path_factory):
    run = finished_run(
        tmp_path_factory.mktemp("out") / "sweep-1",
        replace(cell("full"), cache="cache-of-full"),
        replace(TANGO, cache="cache-of-tango"),
        note="untrained",
        peak_gib=2,
        num_frames=32,
    )
    return run, log_run(run)


@pytest.fixture(scope="module")
def client(logged_sweep):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=default_tracking_uri(logged_sweep[0].parent))


def children(client, parent):
    runs = client.search_runs(
        [client.get_run(parent).info.experiment_id], f"tags.mlflow.parentRunId = '{parent}'"
    )
    return {run.data.tags["tango.cell"]: run for run in runs}


class TestSweep:
    def test_parent_holds_the_job_the_totals_and_where_they_come_from(self, logged_sweep, client):
        run, parent = logged_sweep
        data = client.get_run(parent).data
        summary = json.loads((run / "summary.json").read_text())
        assert data.params["benchmark.name"] == "shapes"
        assert data.params["pools.compress.num_actors"] == "1"
        assert data.params["methods.1.name"] == "tango r=0.1"
        assert data.metrics["counts/failures"] == summary["num_failed"] == 6
        assert data.metrics["memory/peak_gib"] == 2
        assert data.metrics["latency/vision_ms_p95"] == pytest.approx(
            summary["latency_ms"]["vision"]["p95"]
        )
        assert data.params["version.ray"] == "2.60.0"
        assert data.tags["cache"].startswith("llava-onevision-7b")
        assert data.tags["note"] == "untrained"

    def test_every_cell_is_a_child_with_its_own_numbers(self, logged_sweep, client):
        run, parent = logged_sweep
        summary = json.loads((run / "summary.json").read_text())
        found = children(client, parent)
        assert found.keys() == {"shapes: full", "shapes: tango r=0.1"}
        entry, data = summary["cells"][1], found["shapes: tango r=0.1"].data
        assert data.params["method.retention"] == "0.1"
        for name, value in {
            "scores/accuracy": entry["accuracy"],
            "accuracy/duration/short": entry["accuracy_by"]["duration"]["short"]["accuracy"],
            "tokens/total": entry["tokens_total"],
            "tokens/kept": entry["tokens_kept"],
            "latency/prefill_ms_p50": entry["latency_ms"]["prefill"]["p50"],
            "versus_full/full_difference": entry["versus_full"]["difference"],
            "compute/prefill_tflops": entry["prefill_tflops"],
        }.items():
            assert data.metrics[name] == pytest.approx(value), name
        headlines = {
            "accuracy": entry["accuracy"],
            "vs_full": entry["versus_full"]["difference"],
            "tokens_kept": entry["equivalent_retention"],
            "prefill_ms": entry["latency_ms"]["prefill"]["p50"],
        }
        assert list(data.metrics)[:4] == list(headlines), "the UI lists metrics in this order"
        for name, value in headlines.items():
            assert data.metrics[name] == round(value, 4)

    def test_the_parent_has_its_table_as_series_over_retention(self, logged_sweep, client):
        run, parent = logged_sweep
        full, tango = json.loads((run / "summary.json").read_text())["cells"]
        metrics = client.get_run(parent).data.metrics
        for name, cell_, step in (("full", full, 1000), ("tango", tango, 100)):
            (point,) = client.get_metric_history(parent, f"accuracy/{name}")
            assert (point.value, point.step) == (round(cell_["accuracy"], 4), step)
        assert {"prefill_ms/tango", "tokens_kept/tango", "vs_full/tango"} <= set(metrics)
        assert not [name for name in metrics if "r_0.1" in name]

    def test_files_are_stored_beside_the_database(self, logged_sweep, client, tmp_path):
        run, parent = logged_sweep
        names = {item.path for item in client.list_artifacts(parent)}
        assert names >= {"job.yaml", "summary.json", "report.html", "answers", "plots"}
        assert (run.parent / "mlartifacts").is_dir()
        copy = client.download_artifacts(parent, "report.html", str(tmp_path))
        assert Path(copy).read_text() == (run / "report.html").read_text()

    def test_logging_again_updates_the_same_runs_with_the_times_of_the_job(
        self, logged_sweep, client
    ):
        run, parent = logged_sweep
        before = {name: child.info.run_id for name, child in children(client, parent).items()}
        assert log_run(run) == parent
        after = {name: child.info.run_id for name, child in children(client, parent).items()}
        assert before == after
        info = client.get_run(parent).info
        assert (info.status, info.start_time) == ("FINISHED", 1740824100000)
        assert info.end_time - info.start_time == 321500


@pytest.mark.slow
def test_one_cell_is_one_run_and_a_resumed_job_may_change_its_pools(tmp_path):
    from mlflow import MlflowClient

    run = finished_run(tmp_path / "evaluate-1", TANGO)
    first = log_run(run)
    job = (run / "job.yaml").read_text()
    (run / "job.yaml").write_text(job.replace("num_actors: 1", "num_actors: 4"))
    assert log_run(run) == first
    client = MlflowClient(tracking_uri=default_tracking_uri(tmp_path))
    data = client.get_run(first).data
    assert children(client, first) == {}
    summary = json.loads((run / "summary.json").read_text())
    assert data.metrics["scores/accuracy"] == summary["accuracy"]
    assert (data.tags["cell"], data.tags["retention"]) == ("tango r=0.1", "0.1")
    assert data.params["pools.compress.num_actors"] == "1"


class TestTrouble:
    @pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns"])
    def test_the_file_store_is_refused(self, tmp_path, uri):
        with pytest.raises(ValueError, match="retired file store; use sqlite"):
            log_run(tmp_path, uri)

    def test_a_store_that_mlflow_cannot_open_is_one_error(self, one_cell):
        wrong = r"^--tracking-uri foo://bar cannot be opened \(.*\); use sqlite:///"
        with pytest.raises(TrackingError, match=wrong):
            log_run(one_cell, "foo://bar")

    def test_a_closed_port_is_a_user_error(self, one_cell):
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            uri = f"http://127.0.0.1:{nobody.getsockname()[1]}"
            for call in (lambda uri: log_run(one_cell, uri), raise_if_unreachable):
                with pytest.raises(TrackingError, match=r"^MlflowException: .*127\.0\.0\.1"):
                    call(uri)

    def test_an_unfinished_run_is_refused(self, tmp_path):
        facts_of(TANGO).save(tmp_path)
        with pytest.raises(FileNotFoundError, match=r"summary\.json; write it with `tango report"):
            log_run(tmp_path)


def test_importing_tracking_does_not_import_mlflow():
    code = "import sys, jobs.tracking.live; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_lost_answer_makes_no_run_twice(tmp_path, store, monkeypatch):
    from mlflow import MlflowClient

    run = finished_run(tmp_path / "run", TANGO)
    create = MlflowClient.create_run

    def lose(*given, **options):
        create(*given, **options)
        raise ConnectionResetError("connection lost\nin the middle")

    with monkeypatch.context() as broken:
        broken.setattr(MlflowClient, "create_run", lose)
        with pytest.raises(TrackingError, match=r"^ConnectionResetError: connection lost$"):
            log_run(run, store)
    logged = log_run(run, store)
    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("tango").experiment_id
    (found,) = client.search_runs([experiment], "tags.`tango.run_id` = 'run'")
    assert (found.info.run_id, found.info.status) == (logged, "FINISHED")


def test_group_values_become_names_that_mlflow_takes_and_stay_apart(one_cell):
    data = json.loads((one_cell / "summary.json").read_text())["cells"][0]
    entry = {"accuracy": 0.5, "ci95": [0.4, 0.6], "n": 3}
    data["accuracy_by"] = {"lang uage": {"C++/C#": entry, "C--/C!": entry, "": entry}}
    summary = CellSummary.from_json(data, run_id="a", model="tiny")
    names = [name for name in cell_metrics(summary) if name.startswith("accuracy/")]
    assert sorted(names) == ["accuracy/lang uage/C--_C_", "accuracy/lang uage/C___C_",
                             "accuracy/lang uage/_"]  # fmt: skip
