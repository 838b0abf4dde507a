"""Pools of a plan, put together into batches of one shape and uploaded.

Sizes stay on the host, so that whatever works on a batch knows them without asking the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tango_core.compressors.tango.budgets import Pool
from tango_core.compressors.tango.distances import upload


@dataclass(frozen=True, eq=False)
class Batch:
    """Pools that run together, padded to P pools of F frames of M cells.

    Attributes:
        frames: (P, F) int64.
        host_frames: The same on the host.
        cells: (P, M) int64; padding repeats cell 0.
        present: (P, M) bool.
        spans: (P,) frames every token is averaged over.
        salient: (P, F) int64 tokens to pick.
        candidates: (P, F) int64 tokens to pick them among.
        merged: (P,) int64 anchors.
        keeps_all: (P,) bool, whether every unpicked token is an anchor.
        pools: The pools themselves, for sizes on the host.
    """

    frames: Tensor
    host_frames: NDArray[np.int64]
    cells: Tensor
    present: Tensor
    spans: Tensor
    salient: Tensor
    candidates: Tensor
    merged: Tensor
    keeps_all: Tensor
    pools: tuple[Pool, ...]


def num_tokens(pool: Pool) -> int:
    """Tokens of a pool before anything is dropped."""
    return sum(len(group.cells) for group in pool.groups)


def make_batches(pools: Sequence[Pool], device: torch.device) -> list[Batch]:
    """Put pools of one shape together; static groups are padded to the largest."""
    by_shape: dict[tuple[int, ...], list[Pool]] = defaultdict(list)
    for pool in pools:
        first = pool.groups[0]
        shape = (0,) if first.num_frames > 1 else (len(pool.groups), len(first.cells))
        by_shape[shape].append(pool)
    return [_pack(members, device) for members in by_shape.values()]


def _pack(pools: list[Pool], device: torch.device) -> Batch:
    """Upload the plan of some pools."""
    sizes = np.array([len(pool.groups[0].cells) for pool in pools])
    cells = np.zeros((len(pools), sizes.max()), dtype=np.int64)
    for row, pool in zip(cells, pools, strict=True):
        row[: len(pool.groups[0].cells)] = pool.groups[0].cells

    def per_group(name: str) -> NDArray[np.int64]:
        return np.array([[getattr(group, name) for group in pool.groups] for pool in pools])

    merged = np.array([pool.merged for pool in pools])
    return Batch(
        frames=upload(per_group("frame"), device),
        host_frames=per_group("frame"),
        cells=upload(cells, device),
        present=upload(np.arange(cells.shape[1]) < sizes[:, None], device),
        spans=upload(per_group("num_frames")[:, 0], device),
        salient=upload(per_group("salient"), device),
        candidates=upload(per_group("candidates"), device),
        merged=upload(merged, device),
        keeps_all=upload(merged == np.array([pool.num_left for pool in pools]), device),
        pools=tuple(pools),
    )
