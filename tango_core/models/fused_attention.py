"""Fused attention for lengths that change from call to call.

PyTorch chooses the kernel. Since 2.9 it asks cuDNN first on Hopper and data-center Blackwell GPUs,
wherever that is new enough (9.15.1, as in the wheels for CUDA 13), and cuDNN makes a plan for every
shape that it sees for the first time. Users report about half a second of the host for a plan
(unmeasured here), and nearly every prompt has a length of its own. The kernels that come next
(flash, or the memory-efficient one where there is a mask) need no plans.

Towers whose frames all have one size make a plan or two per job and are left to PyTorch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tango_core.ops.process_setting import ProcessSetting

# The stubs of PyTorch lack both.
_cudnn: ProcessSetting[bool] = ProcessSetting(
    lambda: torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp,
    lambda _: False,
)


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


def without_plans() -> AbstractContextManager[None]:
    """Leave cuDNN's attention out inside the block; see `ProcessSetting`."""
    return _cudnn.held()
