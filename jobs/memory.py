"""Memory of this machine, or of the container that this process is in."""

from __future__ import annotations

from pathlib import Path

import psutil

from pipeline.resources.cgroups import CGROUPS, number


def available_memory(cgroups: Path = CGROUPS) -> tuple[int, int]:
    """(total, available) bytes; of the container if that has a limit."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = number(cgroups / limit_file), number(cgroups / used_file)
        if limit is not None and used is not None and limit < total:
            return int(limit), min(available, max(0, int(limit - used)))
    return total, available
