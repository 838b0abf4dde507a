"""How checks run, and how their results are printed."""

from __future__ import annotations

import io
import os
import time
from importlib import import_module
from operator import getitem

import pytest
from fresh_python import printed_by
from rich.console import Console

from jobs.doctor import machine
from jobs.doctor.checks import Check, CheckResult, print_result, run_checks


def test_a_check_that_fails_is_a_problem_and_the_next_one_runs():
    checks = [
        Check("raises", int, ("x",)),
        Check("surprises", getitem, ({}, "key")),
        Check("needs", import_module, ("no_such_module",)),
        Check("crashes", os.abort),
        Check("leaves", os._exit, (3,)),
        Check("hangs", time.sleep, (60,), timeout_s=0.5),
        Check("works", machine.memory),
    ]
    results = dict(run_checks(checks))
    assert [results[check.subject].status for check in checks[:-1]] == ["problem"] * 6
    assert results["raises"].text.startswith("invalid literal")
    assert results["surprises"].text == "KeyError: 'key'"
    assert results["needs"].text == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "SIGABRT" in results["crashes"].text
    assert "status 3" in results["leaves"].text
    assert "no result from the check within 0.5 s" in results["hangs"].text
    assert results["works"].status != "problem"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_is_wrapped_beside_its_subject_on_a_terminal_only(terminal):
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=terminal, color_system=None)
    print_result("embedded model", CheckResult("problem", f"[{'word ' * 40}]\nend"), console)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 or not terminal
    assert len(lines) == 1 or terminal
    assert lines[0].startswith("problem embedded model [word")
    assert all(line.startswith(" " * 23) for line in lines[1:])
    assert lines[-1].rstrip().endswith("] end")


def test_the_command_imports_no_library_that_it_checks():
    code = (
        "import sys, jobs.doctor.command\n"
        "print(sorted({'torch', 'ray', 'transformers', 'mlflow', 'av'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"
