"""`tango sweep`: several methods and benchmarks from one decode and one encode per clip."""

from __future__ import annotations

from rich.console import Console

from jobs.config import Job
from jobs.driver import Places
from jobs.finish import measure


def sweep(job: Job, places: Places, console: Console) -> int:
    """Measure any number of methods in one streaming execution; returns the exit code."""
    return measure(job, "sweep", places, console)
