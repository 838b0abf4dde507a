"""What all benchmarks share: how a call is timed, and what the numbers depend on."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch


def processor() -> str:
    """Name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        if names:
            return names[0].split(":")[1].strip()
    return platform.processor() or platform.machine()


def about_machine() -> dict[str, Any]:
    """What the numbers of a whole pipeline depend on."""
    return {
        "device": processor(),
        "cpus": os.cpu_count(),
        "ray": metadata.version("ray"),
        "pyarrow": metadata.version("pyarrow"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load average": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).date().isoformat(),
    }


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on; `options` has device, dtype, threads and repeats."""
    return {
        "device": processor() if options.device == "cpu" else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": options.threads,
        "dtype": options.dtype,
        "repeats": options.repeats,
        "load average": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).date().isoformat(),
    }


def timed(run: Callable[[], object], device: str) -> tuple[float, float]:
    """Wall and processor milliseconds of one call (device events on an accelerator)."""
    if device != "cpu":
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop), float("nan")
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def spread(values: list[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    numbers = (min(values), statistics.median(values), max(values))
    return dict(zip(("min", "median", "max"), (round(value, 3) for value in numbers), strict=True))
