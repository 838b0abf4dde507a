"""Fused attention for variable lengths, and `torch.compile` where it is worthwhile.

PyTorch selects the attention kernel. Since 2.9 it prefers cuDNN on Hopper and data-center Blackwell
GPUs if it is new enough (9.15.1, as in the wheels for CUDA 13), and cuDNN creates a plan for every
new shape. Users report about half a second of host time per plan (not measured here), and nearly
every prompt has a different length. The kernels that come
next (flash, or the memory-efficient one where there is a mask) need no plans. Towers whose frames
all have one size make a plan or two per job and are left to PyTorch.

A compiler fuses the many small kernels between the matrix products of passes over many tokens:
norms, rotary embeddings, activations and residual sums. So the blocks of the towers and the layers
of the language model are compiled, and nothing else: projectors and signals run once per clip.

Compiled kernels round differently from stock ones, like those of another device. So, like the
device, `model.compile` is not part of the identity of tokens (`ModelSpec.identity`), but of that of
a run, whose cells are compared with each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tango_core.models.onednn import attend_in_blocks, attends
from tango_core.ops.precision import ProcessSetting

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
    """`scaled_dot_product_attention`; on CUDA with kernels that need no plan, on CPUs see `onednn`.

    Args:
        queries: (B, heads, n, d).
        keys: (B, kv_heads, S, d).
        values: (B, kv_heads, S, d).
        scale: Factor of the logits.
        mask: (B, heads, n, S) bool or of a shape that expands to it, `True` where attention is
            allowed; every row needs at least one.
        is_causal: Instead of a mask, for n = S.
        enable_gqa: Whether there are fewer heads of keys than of queries.

    Returns:
        (B, heads, n, d).
    """
    if attends(queries, keys, mask, is_causal):
        return attend_in_blocks(queries, keys, values, scale, is_causal)
    with without_plans() if queries.device.type == "cuda" else nullcontext():
        return functional.scaled_dot_product_attention(
            queries, keys, values, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def without_plans() -> AbstractContextManager[None]:
    """Disable cuDNN's attention inside the block; see `ProcessSetting`."""
    return _cudnn.held()


logger = logging.getLogger(__name__)

CallT = TypeVar("CallT", bound=Callable[..., Any])

BACKEND: Any = "inductor"
"""Backend of `torch.compile`, by name or as a function."""


def can_compile(wanted: bool, device: torch.device) -> bool:
    """Whether a half of a model is to be compiled.

    The first call in a process compiles a small function, which takes seconds, to check that all
    requirements are met (a C++ compiler, for a GPU also Triton). If it fails, one warning is
    logged, and nothing is compiled in this process.

    Args:
        wanted: `ModelSpec.compile`.
        device: Device of the half; nothing is compiled on `meta`.
    """
    return wanted and device.type != "meta" and _compiles(device.type, BACKEND)


def compile_blocks(blocks: Iterable[nn.Module], *, dynamic: bool | None = None) -> None:
    """Compile modules in place, on their first call; all of one kind share programs.

    Args:
        blocks: Blocks of a tower, or layers of a language model.
        dynamic: Whether one program serves any number of rows; `None` for a program specialised
            for the first number, and another one for any number if it changes.
    """
    for block in blocks:
        block.compile(backend=BACKEND, dynamic=dynamic)


def compiled(call: CallT) -> CallT:
    """Compile a function on its first call, for any number of rows."""
    made: Any = torch.compile(call, dynamic=True, backend=BACKEND)
    return made  # type: ignore[no-any-return]


@cache
def _compiles(kind: str, backend: Any) -> bool:
    """Whether a backend can compile for a kind of device."""
    try:
        torch.compile(lambda values: values.exp() * 2, backend=backend)(torch.ones(8, device=kind))
    except Exception as error:  # any library involved may raise
        reason = " ".join(str(error).splitlines()[:2]).strip() or type(error).__name__
        logger.warning("model.compile does nothing: torch cannot compile for %s (%s)", kind, reason)
        return False
    return True
