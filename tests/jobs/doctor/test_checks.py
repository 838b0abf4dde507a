"""How checks run, and how their results are printed."""

from __future__ import annotations

import io
import os
import time
from importlib import import_module
from operator import getitem

from fresh_python import printed_by
from rich.console import Console

from jobs.doctor import checks
from jobs.doctor.checks import CheckResult
from jobs.doctor.command import Check, print_result, run_checks


def test_a_check_that_fails_is_a_problem_and_the_next_one_runs():
    wanted = [
        Check("raises", int, ("x",)),
        Check("surprises", getitem, ({}, "key")),
        Check("needs", import_module, ("no_such_module",)),
        Check("crashes", os.abort),
        Check("leaves", os._exit, (3,)),
        Check("hangs", time.sleep, (60,), timeout_s=0.5),
        Check("works", checks.memory),
    ]
    results = dict(run_checks(wanted))
    assert [results[check.subject].status for check in wanted[:-1]] == ["problem"] * 6
    assert results["raises"].text.startswith("invalid literal")
    assert results["surprises"].text == "KeyError: 'key'"
    assert results["needs"].text == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "SIGABRT" in results["crashes"].text
    assert "status 3" in results["leaves"].text
    assert "no result from the check within 0.5 s" in results["hangs"].text
    assert results["works"].status != "problem"


def test_a_result_is_one_line():
    out = io.StringIO()
    result = CheckResult("problem", f"[{'word ' * 40}]\nend")
    print_result("embedded model", result, Console(file=out, width=80))
    (line,) = out.getvalue().splitlines()
    assert line.startswith("problem embedded model [word")
    assert line.endswith("] end")


def test_the_command_imports_no_library_that_it_checks():
    code = (
        "import sys, jobs.doctor.command\n"
        "print(sorted({'torch', 'ray', 'transformers', 'mlflow', 'av'} & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"
