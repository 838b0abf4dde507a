"""Last lines of a command: how to continue it, and where to view its run."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from jobs.run import interrupt_message as module
from jobs.run.commands import where
from jobs.run.interrupt_message import all_answers_are_in, interrupt_message, works_on
from pipeline.runtime.stopping import Stopped

RUN = Path("runs/my run")
CONTINUE = "finished clips are kept, continue with: tango sweep "
RESUME = "--resume 'runs/my run'"


@pytest.mark.parametrize(
    ("arguments", "record", "said"),
    [
        ("sweep recipe.yaml", lambda: None, "no clip was started"),
        ("report run", lambda: None, "run the command again to complete it"),
        *(
            (given, lambda: works_on(RUN), f"{CONTINUE}recipe.yaml --limit 4 {RESUME}")
            for given in (
                "sweep recipe.yaml --limit 4",
                "sweep recipe.yaml --resume other --limit 4",
                "sweep --resume=other recipe.yaml --steal --limit 4",
            )
        ),
        (
            "sweep recipe.yaml",
            lambda: works_on(RUN, recipe=RUN / "job.yaml"),
            f"{CONTINUE}'runs/my run/job.yaml' {RESUME}",
        ),
        (
            "precompute recipe.yaml --shard 0/8",
            lambda: works_on(RUN, caches_only=True),
            "cached clips are kept, continue with: tango precompute recipe.yaml --shard 0/8",
        ),
        (
            "sweep recipe.yaml",
            lambda: all_answers_are_in(RUN),
            "all answers are in runs/my run; for the tables: tango report 'runs/my run', "
            "for MLflow: tango log-run 'runs/my run'",
        ),
    ],
)
def test_the_command_that_goes_on_is_ready_to_be_pasted(monkeypatch, arguments, record, said):
    monkeypatch.setattr(module, "_text", None)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/tango", *arguments.split()])
    record()
    assert interrupt_message(Stopped(signal.SIGINT)) == f"tango: interrupted; {said}"
    assert interrupt_message(Stopped(signal.SIGTERM)) == f"tango: stopped by SIGTERM; {said}"


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
