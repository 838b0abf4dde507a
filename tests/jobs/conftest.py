"""The console script, as a person at a terminal meets it."""

from __future__ import annotations

import sys

import pytest

from jobs.cli import main


@pytest.fixture
def tango(tmp_path, monkeypatch, capfd):
    """`tango(*arguments)` runs the console script in an empty directory: exit code and output."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tango", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return call
