"""Classify GPU errors: of one method, of a clip, or of the process.

Out-of-memory errors concern a single piece of work: memory is freed and the work is retried once.
After a failed assertion in a kernel, an illegal address or a hardware memory error, every later
CUDA call of the process fails with the same error. Only a new process can use the GPU again, so
such an error must end this process, not only the clip.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from pipeline.clips import one_line
from pipeline.errors import DeviceError
from tango_core.models.memory_faults import free_memory, is_out_of_memory, with_causes

T = TypeVar("T")

# Errors of NVIDIA's list (`cudaError_t`) after which "any further CUDA work will return the same
# error".
_STICKY = re.compile(
    r"device-side assert(ion)? (is )?triggered|illegal memory access|misaligned address"
    r"|illegal instruction|invalid program counter|hardware stack error"
    r"|operation not supported on global/shared address space|unspecified launch failure"
    r"|uncorrectable (ECC|NVLink) error|launch timed out and was terminated"
    r"|context is destroyed|GPU (is lost|has fallen off the bus)",
    re.IGNORECASE,
)
_ROOM = "out of memory, also when retried: raise the pool's num_gpus, or lower model.num_frames"
# Errors of an accelerator or its libraries; a test computation shows whether it still works.
_OF_ACCELERATOR = re.compile(
    r"\b(CUDA|HIP|cuBLAS|cuDNN|cuFFT|cuSOLVER)( driver)? error"
    r"|\b(CUBLAS|CUDNN|CUFFT|CUSOLVER)_STATUS_",
    re.IGNORECASE,
)
_ACCELERATOR_ERROR: Any = getattr(torch, "AcceleratorError", ())  # since torch 2.8


def poison_of(error: BaseException, device_works: Callable[[], bool] | None = None) -> str | None:
    """One-line reason why this process can no longer use its GPU; `None` if it can.

    Args:
        error: Any error; its causes are checked as well.
        device_works: Tests the devices of this process, for errors that are not conclusive.
    """
    for one in with_causes(error, handled=True):
        text = str(one).strip()
        if not isinstance(one, RuntimeError) or is_out_of_memory(one):
            continue
        is_of_accelerator = isinstance(one, _ACCELERATOR_ERROR) or _OF_ACCELERATOR.search(text)
        if is_of_accelerator and (_STICKY.search(text) or not (device_works or _devices_work)()):
            return text.partition("\n")[0]  # without advice about environment variables
    return None


def raise_if_poisoned(error: BaseException) -> None:
    """Raise if the GPU is unusable for this process after an error.

    Raises:
        DeviceError: With the first line of the GPU's error.
    """
    if isinstance(error, DeviceError):
        raise error
    if (reason := poison_of(error)) is not None:
        raise DeviceError(one_line(reason)) from error


def with_second_try(work: Callable[[], T]) -> T:
    """Call `work`; on an out-of-memory error free memory and call it once more.

    Args:
        work: Function without side effects that prevent a second call.
    """
    try:
        return work()
    except Exception as error:
        raise_if_poisoned(error)
        if not is_out_of_memory(error):
            raise
    # Outside of `except`, so that the traceback no longer references tensors of the first call.
    free_memory()
    return work()


def reason_of(error: BaseException) -> str:
    """Format an error for a row: class and message in one line."""
    reason = f"{type(error).__name__}: {error}"
    return one_line(f"{_ROOM}; {reason}" if is_out_of_memory(error) else reason)


def _devices_work() -> bool:
    """Whether a small computation succeeds on every GPU that this process has used."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    used = {torch.cuda.current_device()} | {
        index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)
    }
    try:
        return all(float(torch.ones(2, device=f"cuda:{index}").sum()) == 2.0 for index in used)
    except Exception as error:
        return is_out_of_memory(error)
