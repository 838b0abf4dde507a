"""The line of a command that a signal ended names what continues it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from jobs.run import interrupt_message as module
from jobs.run.interrupt_message import all_answers_are_there, interrupt_message, works_on
from pipeline.runtime.stopping import Stopped

RUN = Path("runs/my run")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    # A command that ran in this process before has left its own behind.
    nothing = dict.fromkeys(("run", "recipe", "text"))
    nothing |= dict.fromkeys(("is_complete", "caches_only"), False)
    monkeypatch.setattr(module, "_Progress", type("_Progress", (module._Progress,), nothing))


def line(monkeypatch, *arguments, signum=signal.SIGTERM):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/tango", *arguments])
    text = interrupt_message(Stopped(signum))
    assert "\n" not in text
    return text


def test_before_there_is_a_run(monkeypatch):
    text = line(monkeypatch, "sweep", "recipe.yaml")
    assert text == "tango: stopped by SIGTERM; no clip was started"


@pytest.mark.parametrize(
    "given",
    [
        ["sweep", "recipe.yaml", "--limit", "4"],
        ["sweep", "recipe.yaml", "--resume", "other", "--limit", "4"],
        ["sweep", "--resume=other", "recipe.yaml", "--steal", "--limit", "4"],
    ],
)
def test_the_command_that_goes_on_is_ready_to_be_pasted(monkeypatch, given):
    works_on(RUN)
    assert line(monkeypatch, *given, signum=signal.SIGINT) == (
        "tango: interrupted; finished clips are kept, continue with: "
        "tango sweep recipe.yaml --limit 4 --resume 'runs/my run'"
    )


def test_one_of_several_runs_goes_on_with_its_own_recipe(monkeypatch):
    works_on(RUN, recipe=RUN / "job.yaml")
    text = line(monkeypatch, "sweep", "recipe.yaml")
    assert text.endswith("continue with: tango sweep 'runs/my run/job.yaml' --resume 'runs/my run'")


def test_caches_go_on_with_the_same_command(monkeypatch):
    works_on(RUN, caches_only=True)
    text = line(monkeypatch, "precompute", "recipe.yaml", "--shard", "0/8")
    assert text.endswith("continue with: tango precompute recipe.yaml --shard 0/8")


def test_after_the_answers_only_tables_are_left(monkeypatch):
    works_on(RUN)
    all_answers_are_there()
    text = line(monkeypatch, "sweep", "recipe.yaml", signum=signal.SIGHUP)
    assert text.startswith("tango: stopped by SIGHUP; all answers are in runs/my run; ")
    assert "tango report 'runs/my run'" in text
