"""The Grafana dashboard: its metrics exist, and its queries have results."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
import requests
import yaml
from free_ports import free_port

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


def test_every_metric_of_the_dashboard_is_emitted():
    asked = {name for query in QUERIES.values() for name in METRIC.findall(query)}
    assert {name for name in asked if name.startswith("ray_tango_")} <= OURS
    assert {name for name in asked if not name.startswith("ray_tango_")} <= recorded(), "Ray's own"


def test_every_metric_is_in_the_recording():
    assert recorded() >= OURS


def test_panels_do_not_overlap_and_have_unique_ids():
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


@pytest.fixture(scope="module")
def over_time(tmp_path_factory):
    """`over_time(query)`: series from a real Prometheus that holds the recording, every 5 s."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    load = ["promtool", "tsdb", "create-blocks-from", "openmetrics", RECORDING, folder / "data"]
    subprocess.run(load, check=True, capture_output=True, timeout=120)
    config = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"global": config["global"]}))
    command = ["prometheus", f"--config.file={folder}/prometheus.yml",
               f"--storage.tsdb.path={folder}/data", "--storage.tsdb.retention.time=100y",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    times = {float(line.split()[-1]) for line in RECORDING.read_text().splitlines()[:-1]}

    def ask(query):
        # Grafana's variables are replaced; the rate interval is four scrapes.
        query = query.replace("$__rate_interval", "60s").replace("$session", ".*")
        about = {"query": query, "start": min(times), "end": max(times), "step": 5}
        url = f"http://127.0.0.1:{port}/api/v1/query_range"
        return requests.get(url, about, timeout=60).json()["data"]["result"]

    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    deadline = time.monotonic() + 120
    while "Server is ready" not in (text := (folder / "log").read_text()):
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
    yield ask
    process.terminate()
    process.wait(60)


def values(series):
    """The numbers of one series."""
    return [float(value) for _, value in series["values"] if value not in ("NaN", "+Inf")]


@pytest.mark.system
@pytest.mark.parametrize("panel", QUERIES)
def test_every_query_has_results_for_a_recorded_job(over_time, panel):
    result = over_time(QUERIES[panel])
    assert any(values(series) for series in result), QUERIES[panel]


@pytest.mark.system
def test_panels_show_the_counts_of_the_recorded_job(over_time):
    def last(panel):
        return {
            series["metric"].get("stage", ""): values(series)[-1]
            for series in over_time(QUERIES[panel])
        }

    assert last("Clips done/A") == {"": 1}
    assert last("Failed clips/A") == {"": 2}
    assert last("Failures/A") == {"decode": 2}
    assert set(last("Slots/A")) == {"decode", "compress", "answer"}
    assert 0 < last("Tokens kept/A")[""] < 1
    for series in over_time(QUERIES["Busy share/A"]):
        assert all(0 <= value <= 1.5 for value in values(series))
