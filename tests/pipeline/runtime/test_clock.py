"""Time and files come in as parameters wherever a fault in them is to be simulated."""

from __future__ import annotations

import ast
from datetime import UTC, datetime, timedelta
from pathlib import Path

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
