"""Fused attention for lengths that change from call to call.

PyTorch chooses the kernel. Since 2.9 it asks cuDNN first on Hopper and data-center Blackwell GPUs,
wherever that is new enough (9.15.1, as in the wheels for CUDA 13), and cuDNN makes a plan for every
shape that it sees for the first time. Users measured about half a second of the host for a plan;
here nearly every prompt has a length of its own, and its prefill takes a tenth of that. The kernels
that come next (flash, or the memory-efficient one where there is a mask) need no plans.

Towers whose frames all have one size make a plan or two per job and are left to PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_lock = threading.Lock()
_state: dict[str, Any] = {"users": 0, "before": True}


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention`, on CUDA by a kernel that takes any length at once.

    Args:
        queries: (B, heads, n, d).
        keys: (B, kv_heads, S, d).
        values: (B, kv_heads, S, d).
        scale: Factor of the logits.
        mask: (B, heads, n, S) bool or of a shape that expands to it, `True` where attention is
            allowed; every row needs one such place.
        is_causal: Instead of a mask, for n = S.
        enable_gqa: Whether there are fewer heads of keys than of queries.

    Returns:
        (B, heads, n, d).
    """
    options: dict[str, Any] = {"attn_mask": mask, "is_causal": is_causal, "enable_gqa": enable_gqa}
    if queries.device.type != "cuda":
        return functional.scaled_dot_product_attention(
            queries, keys, values, scale=scale, **options
        )
    with without_plans():
        return functional.scaled_dot_product_attention(
            queries, keys, values, scale=scale, **options
        )


@contextmanager
def without_plans() -> Iterator[None]:
    """Leave cuDNN's attention out inside the block.

    PyTorch's setting holds for the whole process. The first thread to enter notes what was set, and
    the last to leave sets it again.
    """
    with _lock:
        if not _state["users"]:
            _state["before"] = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
            torch.backends.cuda.enable_cudnn_sdp(False)
        _state["users"] += 1
    try:
        yield
    finally:
        with _lock:
            _state["users"] -= 1
            if not _state["users"]:
                torch.backends.cuda.enable_cudnn_sdp(_state["before"])
