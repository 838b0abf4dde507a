"""Progress of a training on a terminal and in a log."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from jobs.training.display import show_progress


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_bars_and_a_log_gets_lines(terminal, caplog):
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=terminal)
    with caplog.at_level(logging.INFO), show_progress(console) as report:
        report("vision", 1, 3, {"loss": 2.0, "loss/kind": 1.0})
        report("vision", 2, 3, {"loss": 1.5, "loss/kind": 0.7})
        report("vision", 3, 3, {"loss": 1.25, "loss/kind": 0.5})
    lines = [record.getMessage() for record in caplog.records]
    if terminal:
        assert not lines
        assert "3/3" in out.getvalue()
        assert "loss 1.25" in out.getvalue()
    else:
        assert out.getvalue() == ""
        assert lines == [
            "vision: step 1 of 3, loss 2.00",
            "vision: step 3 of 3, loss 1.25",
        ]
