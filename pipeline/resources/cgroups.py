"""CPUs and memory that this process may use, by cgroups and affinity."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def num_cpus(cgroups: Path = CGROUPS) -> int:
    """CPUs that this process may use.

    The quota of cgroups (version 1 or 2), rounded down, as Ray counts, and the CPUs that `taskset`
    or a batch system binds this process to, which Ray ignores.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    bound_to = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, int(min(_quota(cgroups) or math.inf, bound_to)))


def _quota(cgroups: Path) -> float | None:
    """Number of CPUs of a container's quota; `None` without a quota."""
    quota = number(cgroups / "cpu/cpu.cfs_quota_us")
    period = number(cgroups / "cpu/cpu.cfs_period_us")
    if quota is None or period is None:
        words = _read(cgroups / "cpu.max").split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            return None
        quota, period = float(words[0]), float(words[1])
    return quota / period if quota > 0 and period > 0 else None


def number(file: Path) -> float | None:
    """The number in a file; `None` if it holds none."""
    try:
        return float(_read(file))
    except ValueError:
        return None


def _read(file: Path) -> str:
    """Content of a small file; "" if it cannot be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
