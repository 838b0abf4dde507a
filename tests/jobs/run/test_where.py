"""The last line of a job: where its run is to be looked at."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest

from jobs.run.commands import where


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000/#/runs/12ab"),
        ("https://me:word@host/mlflow/", "https://***@host/mlflow/#/runs/12ab"),
        ("sqlite:///runs/mlflow.db", "mlflow ui --backend-store-uri sqlite:///runs/mlflow.db"),
    ],
)
def test_a_run_on_a_server_has_a_page_and_a_store_a_command(uri, said):
    assert where(uri, "12ab") == said


def test_mlflow_has_a_page_under_that_name():
    scripts = Path(mlflow.__file__).parent.glob("server/js/build/static/js/*.js")
    assert any('"/runs/:runUuid"' in script.read_text(errors="ignore") for script in scripts)
