"""The Grafana dashboard: its metrics exist, and its queries have results."""

from __future__ import annotations

import json
import re
import subprocess
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


@pytest.mark.system
def test_prometheus_can_parse_every_query(tmp_path):
    rules = [
        # Grafana's variables are replaced; the rate interval is four scrapes.
        {"record": f"panel:{at}", "expr": one.replace("$__rate_interval", "60s")}
        for at, one in enumerate(QUERIES.values())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = ["promtool", "check", "rules", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
