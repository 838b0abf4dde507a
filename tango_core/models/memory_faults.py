"""Free memory of devices, and out-of-memory errors of devices and hosts."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")

_OUT_OF_MEMORY = re.compile(
    r"\bCU(BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED|\b(CUDA|HIP)( driver)? error: out of memory"
    r"|\b(CUDA|HIP) out of memory|DefaultCPUAllocator: (can't|not enough)"
    # Raised when cuBLAS cannot be initialised on a full GPU.
    r"|CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublasCreate"
    # Raised on MIG slices, where PyTorch may not query memory use (pytorch#112377).
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the memory of a device or of the host is exhausted."""
    return any(
        isinstance(one, (torch.OutOfMemoryError, MemoryError))
        or (isinstance(one, RuntimeError) and _OUT_OF_MEMORY.search(str(one)) is not None)
        for one in with_causes(error)
    )


def free_memory() -> None:
    """Free unreferenced and cached memory, for the system and for other processes on the GPU."""
    gc.collect()
    if cuda_is_in_use():
        torch.cuda.empty_cache()


def again_with_memory_freed(work: Callable[[], T]) -> T:
    """Run `work`; after out of memory, free memory and run it once more.

    Args:
        work: Function to run; must be repeatable.
    """
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    # The error is deleted here, and with it the frames that held the first attempt's tensors.
    free_memory()
    return work()


def cuda_is_in_use() -> bool:
    """Whether this process has a real GPU and has used it."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def with_causes(error: BaseException, *, handled: bool = False) -> Iterator[BaseException]:
    """An error and its causes; with `handled`, also its contexts."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        current = current.__cause__ or (current.__context__ if handled else None)


def free_bytes(device: torch.device) -> int | None:
    """Memory of an accelerator that this process can allocate; `None` for a CPU.

    Memory that PyTorch has reserved but does not use counts as free. If the process is limited to a
    fraction of the GPU, the result is at most the unused part of this fraction.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    unused = torch.cuda.memory_reserved(device) - allocated
    share_of = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)  # torch 2.7
    share = share_of(device.index)
    return max(0, min(int(free + unused), int(share * total) - int(allocated)))
