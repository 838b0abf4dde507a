"""The dashboard asks for metrics that there are, and its queries give numbers."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from pipeline.metrics import METRICS

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "infra/grafana"
RECORDING = ROOT / "tests/fixtures/prometheus/job.om"
DASHBOARD = json.loads((GRAFANA / "tango.json").read_text())
QUERIES = {
    f"{panel['title']}/{target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
METRIC = re.compile(r"\bray_\w+")
OURS = {name for metric in METRICS for name in metric.exported}


def recorded():
    """The names in the recording."""
    return {line.partition("{")[0] for line in RECORDING.read_text().splitlines()}


def test_every_metric_of_the_dashboard_is_one_that_is_emitted():
    asked = {name for query in QUERIES.values() for name in METRIC.findall(query)}
    assert {name for name in asked if name.startswith("ray_tango_")} <= OURS
    assert {name for name in asked if not name.startswith("ray_tango_")} <= recorded(), "Ray's own"


def test_every_metric_is_in_the_recording():
    assert recorded() >= OURS


def test_panels_do_not_overlap_and_have_numbers_of_their_own():
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["description"] for panel in DASHBOARD["panels"])


def test_files_for_provisioning_are_what_grafana_reads():
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())
    assert source["apiVersion"] == 1
    assert source["datasources"][0]["type"] == "prometheus"
    boards = yaml.safe_load((GRAFANA / "provisioning/dashboards/tango.yaml").read_text())
    assert boards["providers"][0]["type"] == "file"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """`prometheus(query)` asks a real Prometheus that holds the recording, over its whole time."""
    folder = tmp_path_factory.mktemp("prometheus")
    load = ["promtool", "tsdb", "create-blocks-from", "openmetrics", RECORDING, folder / "data"]
    subprocess.run(load, check=True, capture_output=True, timeout=120)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"global": config["global"]}))
    command = ["prometheus", f"--config.file={folder}/prometheus.yml",
               f"--storage.tsdb.path={folder}/data", "--storage.tsdb.retention.time=100y",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    times = [float(line.split()[-1]) for line in RECORDING.read_text().splitlines()[:-1]]
    address = f"http://127.0.0.1:{port}"

    def ask(query):
        about = {"query": query, "start": min(times), "end": max(times), "step": 5}
        with urllib.request.urlopen(
            f"{address}/api/v1/query_range?{urllib.parse.urlencode(about)}", timeout=60
        ) as reply:
            return json.load(reply)["data"]["result"]

    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    urllib.request.urlopen(f"{address}/-/ready", timeout=5).close()
                    break
                except OSError:
                    assert process.poll() is None, (folder / "log").read_text()
                    assert time.monotonic() < deadline, (folder / "log").read_text()
                    time.sleep(0.2)
            yield ask
        finally:
            process.terminate()
            process.wait(60)


def as_grafana_asks(query):
    """A query with Grafana's variables filled in."""
    return query.replace("$__rate_interval", "60s").replace("$session", ".*")


def values(series):
    """The numbers of one series."""
    return [float(value) for _, value in series["values"] if value not in ("NaN", "+Inf")]


@pytest.mark.system
@pytest.mark.parametrize("panel", QUERIES)
def test_every_query_gives_numbers_over_a_recorded_job(prometheus, panel):
    result = prometheus(as_grafana_asks(QUERIES[panel]))
    assert any(values(series) for series in result), QUERIES[panel]


@pytest.mark.system
def test_the_panels_tell_what_the_recorded_job_did(prometheus):
    def last(panel):
        return {
            series["metric"].get("stage", ""): values(series)[-1]
            for series in prometheus(as_grafana_asks(QUERIES[panel]))
        }

    assert last("Clips done/A") == {"": 1}
    assert last("Failed clips/A") == {"": 2}
    assert last("Failures/A") == {"decode": 2}
    assert set(last("Slots/A")) == {"decode", "compress", "answer"}
    assert 0 < last("Tokens kept/A")[""] < 1
    for series in prometheus(as_grafana_asks(QUERIES["Busy share/A"])):
        assert all(0 <= value <= 1.5 for value in values(series))
