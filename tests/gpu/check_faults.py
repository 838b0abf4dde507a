"""What a real GPU says when its memory is full, and when a kernel has failed."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import torch

from tango_core.models.memory_faults import again_with_memory_freed, is_out_of_memory
from tests.gpu.command import Rows, Run, tried

# That of a worker whose GPU is lost, in `pipeline/executors/workers.py`.
LOST_GPU = 70
_ASSERT = f"""
import os, sys, torch
values, at = torch.zeros(4, device="cuda"), torch.tensor([9], device="cuda")
said = []
for work in (lambda: values[at].sum().item(), lambda: torch.ones(2, device="cuda").sum().item()):
    try:
        work()
    except RuntimeError as error:
        said.append(str(error))
print(*said, sep="\\n", file=sys.stderr, flush=True)
os._exit({LOST_GPU} if len(said) == 2 and "device-side assert" in said[0] else 1)
"""


def check_full_memory(run: Run) -> Rows:
    """Work that does not fit is tried a second time, and then is an error that names memory."""
    return [
        tried({"room": room}, partial(_full, run, fits))
        for room, fits in (("at the second try", True), ("never", False))
    ]


def _full(run: Run, fits: bool) -> dict[str, Any]:
    """Allocate what no device has, in every try or in the first one alone."""
    tries = 0

    def work() -> int:
        nonlocal tries
        tries += 1
        torch.empty(2**50 if tries == 1 or not fits else 16, dtype=torch.uint8, device=run.device)
        return tries

    try:
        again_with_memory_freed(work)
        refused = False
    except Exception as error:
        refused = is_out_of_memory(error)
    works = float(torch.ones(2, device=run.device).sum()) == 2.0
    ok = tries == 2 and refused is not fits and works
    return {"tries": tries, "refused": refused, "device works": works, "ok": ok}


def check_lost_gpu(run: Run) -> Rows:
    """A failed assertion in a kernel fails all later work, and its process can end at once."""
    if run.device.type != "cuda":
        return [{"exit code": None, "ok": True}]  # a CPU has no context to lose
    done = subprocess.run(
        [sys.executable, "-c", _ASSERT], capture_output=True, text=True, timeout=120, check=False
    )
    works = float(torch.ones(2, device=run.device).sum()) == 2.0
    ok = done.returncode == LOST_GPU and works
    return [{"exit code": done.returncode, "this process works": works, "ok": ok}]
