"""`torch.compile` for blocks of the towers and for the prefill.

Norms, rotary embeddings, activations and residual sums are many small kernels that each read and
write all tokens; a compiler joins them. Matrix products and fused attention are what they were. So
the blocks of the towers and the layers of a prefill are compiled, and nothing else: projectors and
signals run once per clip, and a step of decoding has one token per sequence and is a CUDA graph.

Compiled kernels round otherwise than stock ones, as those of another device do, and what they
compute is called the same for the same reason: the device is no part of the identity of tokens
(`ModelSpec.identity`) and is part of that of a run, whose cells are compared with each other. So it
is with this setting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

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
