"""Classify GPU errors: of one method, of a clip, or of the process.

Too little memory is the fault of one piece of work: memory is freed, and the work is tried once
more, in smaller pieces where it has some. A poisoned GPU is another matter. After a failed
assertion in a kernel, an illegal address or a memory error of the chip, CUDA answers every later
call of the process with the same error. Only a new process gets the GPU back, so such an error must
end this one and not only a clip.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import torch

from pipeline.errors import DeviceError
from pipeline.rows import one_line
from pipeline.storage.faults import store_fault
from tango_core.models.memory_faults import free_memory, is_out_of_memory, with_causes

T = TypeVar("T")

# From NVIDIA's list of errors (`cudaError_t`), those behind which it says: "This leaves the process
# in an inconsistent state and any further CUDA work will return the same error."
_STICKY = re.compile(
    r"device-side assert(ion)? (is )?triggered|illegal memory access|misaligned address"
    r"|illegal instruction|invalid program counter|hardware stack error"
    r"|operation not supported on global/shared address space|unspecified launch failure"
    r"|uncorrectable (ECC|NVLink) error|launch timed out and was terminated"
    r"|context is destroyed|GPU (is lost|has fallen off the bus)",
    re.IGNORECASE,
)
# What a user can do about a lack of memory that smaller pieces did not help.
_ROOM = "no room for this method, twice: raise the pool's num_gpus, or lower model.num_frames"
# Of an accelerator or its libraries; whether it still works is seen only by asking it.
_OF_ACCELERATOR = re.compile(
    r"\b(CUDA|HIP|cuBLAS|cuDNN|cuFFT|cuSOLVER)( driver)? error"
    r"|\b(CUBLAS|CUDNN|CUFFT|CUSOLVER)_STATUS_",
    re.IGNORECASE,
)
# Mostly a lack of memory, but a library that cannot start on a lost GPU says so, too.
_IN_DOUBT = re.compile(r"CUBLAS_STATUS_NOT_INITIALIZED")
_ACCELERATOR_ERROR: Any = getattr(torch, "AcceleratorError", ())  # since torch 2.8


def poison_of(error: BaseException, device_works: Callable[[], bool] | None = None) -> str | None:
    """Why this process cannot use its GPU any more, in one line; `None` if it can.

    Args:
        error: From any piece of work; what it was raised from is looked at, too.
        device_works: Asks the devices of this process, for errors that do not tell.
    """
    for one in with_causes(error, handled=True):
        text = str(one)
        is_full = is_out_of_memory(one) and not _IN_DOUBT.search(text)
        if not isinstance(one, RuntimeError) or is_full:
            continue
        is_of_accelerator = isinstance(one, _ACCELERATOR_ERROR) or _OF_ACCELERATOR.search(text)
        if not is_of_accelerator:
            continue
        if _STICKY.search(text) or not (device_works or _devices_work)():
            return _first_line(text)
    return None


def raise_if_poisoned(error: BaseException) -> None:
    """Raise if an error has made the GPU useless for this process.

    Raises:
        DeviceError: With what the GPU said, in one line.
    """
    if isinstance(error, DeviceError):
        raise error
    if (reason := poison_of(error)) is not None:
        raise DeviceError(one_line(reason)) from error


def with_second_try(work: Callable[[], T]) -> T:
    """The result of `work`; if memory is too small, of a second try after memory was freed.

    Args:
        work: May raise anything; what it has begun is begun anew.
    """
    try:
        return work()
    except Exception as error:
        raise_if_poisoned(error)
        if not is_out_of_memory(error):
            raise
    # Here the error is gone, and with it the frames that held the tensors of the first try.
    free_memory()
    return work()


def each_on_its_own(
    names: Iterable[str], work: Callable[[str], None], where: str
) -> dict[str, str]:
    """Do a piece of work for one method after another; one that fails leaves the others alone.

    Args:
        names: Names of methods or of their caches.
        work: Of one of them.
        where: Directory or bucket that it writes to, for messages.

    Returns:
        Name -> why it failed, in one line, of those that did.

    Raises:
        DeviceError: If the GPU can be used no more.
        Exception: Of a store that does not work, which would fail for every other name, too.
    """
    found = {}
    for name in names:
        try:
            with_second_try(partial(work, name))
        except Exception as error:  # what one method provokes becomes its reason
            raise_if_poisoned(error)
            if store_fault(error, where):
                raise
            found[name] = reason_of(error)
    return found


def reason_of(error: BaseException) -> str:
    """An error as rows have it: its class and what it says, in one line."""
    reason = f"{type(error).__name__}: {error}"
    return one_line(f"{_ROOM}; {reason}" if is_out_of_memory(error) else reason)


def _first_line(text: str) -> str:
    """What CUDA says, without its advice about environment variables."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "unknown error")


def _devices_work() -> bool:
    """Whether every GPU that this process has used still computes."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    used = {torch.cuda.current_device()} | {
        index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)
    }
    try:
        return all(float(torch.ones(2, device=f"cuda:{index}").sum()) == 2.0 for index in used)
    except Exception as error:
        return is_out_of_memory(error)
