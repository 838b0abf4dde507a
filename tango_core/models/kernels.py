"""Fused attention for lengths that change, and `torch.compile` where it pays.

PyTorch chooses the kernel of attention. Since 2.9 it asks cuDNN first on Hopper and data-center
Blackwell GPUs, wherever that is new enough (9.15.1, as in the wheels for CUDA 13), and cuDNN makes
a plan for every shape that it sees for the first time. Users report about half a second of the host
for a plan (unmeasured here), and nearly every prompt has a length of its own. The kernels that come
next (flash, or the memory-efficient one where there is a mask) need no plans. Towers whose frames
all have one size make a plan or two per job and are left to PyTorch.

A compiler joins the many small kernels between the matrix products of passes over many tokens:
norms, rotary embeddings, activations and residual sums. So the blocks of the towers and the layers
of a prefill are compiled, and nothing else: projectors and signals run once per clip, and a step of
decoding has one token per sequence and is a CUDA graph.

Compiled kernels round otherwise than stock ones, as those of another device do. So `model.compile`,
like the device, is no part of the identity of tokens (`ModelSpec.identity`), and is part of that of
a run, whose cells are compared with each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
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


logger = logging.getLogger(__name__)

CallT = TypeVar("CallT", bound=Callable[..., Any])

BACKEND: Any = "inductor"
"""What `torch.compile` makes kernels with, by its name or as its function."""


def can_compile(wanted: bool, device: torch.device) -> bool:
    """Whether a half of a model is to be compiled.

    The first time a process asks, something small is compiled, which takes seconds: only that shows
    whether there is all that it needs (a C++ compiler, for a GPU also Triton). If it fails, one
    warning says why, and the halves of this process stay as they are.

    Args:
        wanted: `ModelSpec.compile`.
        device: Where the half is; nothing is compiled on `meta`, where nothing is computed.
    """
    return wanted and device.type != "meta" and _compiles(device.type, BACKEND)


def compile_blocks(blocks: Iterable[nn.Module]) -> None:
    """Compile blocks of a tower, in place, when they are first called.

    All of them are one program. It is for the number of frames that comes first; if another one
    comes, it is made again, for any number.
    """
    for block in blocks:
        block.compile(backend=BACKEND)


def compiled(call: CallT) -> CallT:
    """A function or layer, compiled when it is first called, for any number of tokens.

    Args:
        call: Stays as it is.
    """
    made: Any = torch.compile(call, dynamic=True, backend=BACKEND)
    return made  # type: ignore[no-any-return]


@cache
def _compiles(kind: str, backend: Any) -> bool:
    """Whether a backend makes kernels for a kind of device."""
    try:
        torch.compile(_small, backend=backend)(torch.ones(8, device=kind))
    except Exception as error:  # of any of many libraries
        reason = " ".join(str(error).splitlines()[:2]).strip() or type(error).__name__
        logger.warning("model.compile does nothing: torch cannot compile for %s (%s)", kind, reason)
        return False
    return True


def _small(values: Tensor) -> Tensor:
    """Two steps that a compiler joins."""
    return values.exp() * 2
