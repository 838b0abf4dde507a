"""Time and files come in as parameters wherever a fault in them is to be simulated."""

from __future__ import annotations

import ast
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.runtime.background import is_busy, iterate, within
from pipeline.runtime.clock import SYSTEM_CLOCK

ROOT = Path(__file__).parents[3]
# They ask other machines, look at source videos, installed software or the environment.
OTHERS = {
    "fingerprint.py", "cgroups.py", "cluster.py", "provenance.py", "build.py",
    "leases.py", "locations.py", "redaction.py",
}  # fmt: skip
# Processes, signals and the terminal, and times that are shown while a job runs: no result and no
# file of a run depends on them.
LIVE = {
    "derived.py", "metrics.py", "ray_reports.py",
}  # fmt: skip
# Work in a directory of their own that is removed again.
ASIDE = {"commands.py", "dry_run.py"}
INJECTED = sorted(
    path
    for folder, pattern in (
        ("pipeline/cache", "*.py"),
        ("pipeline/executors", "*.py"),
        ("pipeline", "*.py"),
        ("pipeline/progress", "*.py"),
        ("pipeline/storage", "[fls]*.py"),
        ("jobs/run", "*.py"),
    )
    for path in (ROOT / folder).glob(pattern)
    if path.name not in {*OTHERS, *LIVE, *ASIDE, "files.py"}
)
CLOCKS = {"time", "shutil", "tempfile", "os"}
FILES = {
    "glob", "iterdir", "is_dir", "is_file", "mkdir", "open", "read_bytes", "read_text", "rename",
    "rglob", "rmdir", "stat", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
DATES = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}


def direct_calls(source: str) -> list[str]:
    """Imports of clocks and file libraries, and calls of what they offer."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in CLOCKS]
        elif isinstance(node, ast.ImportFrom) and node.module in CLOCKS:
            found.append(node.module)
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id == "open":
                found.append("open")
            elif isinstance(function, ast.Attribute):
                owner = getattr(function.value, "id", "")
                is_file = function.attr in FILES or (
                    function.attr == "exists" and not node.args  # that of `Storage` takes a name
                )
                if is_file or (owner, function.attr) in DATES:
                    found.append(f"{owner}.{function.attr}")
    return found


def test_no_module_asks_the_machine_for_time_or_files():
    found = {str(path): direct_calls(path.read_text()) for path in INJECTED}
    assert {path: calls for path, calls in found.items() if calls} == {}


def test_the_clock_of_the_machine_counts_up_in_utc():
    before, date = SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.now()
    SYSTEM_CLOCK.sleep(0.001)
    assert SYSTEM_CLOCK.monotonic() - before >= 0.001
    assert date.tzinfo == UTC
    # The date may be set while this runs, to and fro; it is not that of another time zone.
    assert abs(SYSTEM_CLOCK.now() - datetime.now(UTC)) < timedelta(minutes=10)


def wait_until_idle():
    deadline = time.monotonic() + 120
    while is_busy():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_closes_the_iterator_and_waits_for_its_end():
    closed = threading.Event()

    def numbers():
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    items = iterate(numbers)
    next(items)
    items.close()
    assert closed.is_set()


@pytest.mark.parametrize("good", [0, 2])
def test_an_error_comes_through(good):
    def numbers():
        yield from range(good)
        raise ValueError("no more")

    seen = []
    with pytest.raises(ValueError, match="no more"):
        seen.extend(iterate(numbers))
    items = iterate(numbers)
    assert [next(items) for _ in range(good)] == list(range(good))
    items.close()


def test_an_error_at_the_end_comes_through():
    def numbers():
        try:
            yield 1
        finally:
            raise ValueError("cannot be closed")

    items = iterate(numbers)
    next(items)
    with pytest.raises(ValueError, match="cannot be closed"):
        items.close()


def test_an_iterator_that_hangs_is_left_to_itself_if_the_watch_says_so():
    end, hangs, seen = threading.Event(), threading.Event(), []

    def numbers():
        yield 1
        hangs.set()
        end.wait(120)

    def watch():
        if hangs.is_set():
            raise TimeoutError("too long")

    with pytest.raises(TimeoutError, match="too long"):
        seen.extend(iterate(numbers, watch))
    assert seen == [1]
    assert is_busy()
    end.set()
    wait_until_idle()


def test_work_with_a_bound_gives_its_result_or_its_error():
    assert within(120, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(120, lambda: 1 // 0)


def test_work_that_takes_too_long_is_a_timeout():
    end = threading.Event()
    with pytest.raises(TimeoutError):
        within(0.1, lambda: end.wait(120))
    end.set()
    wait_until_idle()


def test_whoever_has_the_result_finds_the_thread_idle():
    """Otherwise a command would end without the order that an interpreter ends in."""
    for _ in range(200):
        assert list(iterate(lambda: iter("a"))) == ["a"]
        assert not is_busy()
        within(120, lambda: None)
        assert not is_busy()
