"""Groups of a plan, put together into batches of one shape and uploaded.

Sizes stay on the host, so that they can be used without waiting for the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tango_core.compressors.tango.budgets import TokenGroup
from tango_core.ops.transfer import upload


@dataclass(frozen=True, eq=False)
class Batch:
    """Groups that run together, padded to P groups of F frames of M positions.

    Attributes:
        frames: (P, F) int64.
        host_frames: The same on the host.
        spatial: (P, M) int64 spatial positions; padding repeats position 0.
        present: (P, M) bool.
        spans: (P,) frames every token is averaged over.
        salient: (P, F) int64 tokens to pick.
        candidates: (P, F) int64 tokens to pick them among.
        merged: (P,) int64 anchors.
        keeps_all: (P,) bool, whether every unpicked token is an anchor.
        groups: The groups themselves, for sizes on the host.
    """

    frames: Tensor
    host_frames: NDArray[np.int64]
    spatial: Tensor
    present: Tensor
    spans: Tensor
    salient: Tensor
    candidates: Tensor
    merged: Tensor
    keeps_all: Tensor
    groups: tuple[TokenGroup, ...]


def make_batches(groups: Sequence[TokenGroup], device: torch.device) -> list[Batch]:
    """Put groups of one shape together; static parts are padded to the largest."""
    by_shape: dict[tuple[int, ...], list[TokenGroup]] = defaultdict(list)
    for group in groups:
        first = group.parts[0]
        shape = (0,) if first.num_frames > 1 else (len(group.parts), len(first.spatial))
        by_shape[shape].append(group)
    return [_pack(members, device) for members in by_shape.values()]


def _pack(groups: list[TokenGroup], device: torch.device) -> Batch:
    """Upload the plan of some groups."""
    sizes = np.array([len(group.parts[0].spatial) for group in groups])
    spatial = np.zeros((len(groups), sizes.max()), dtype=np.int64)
    for row, group in zip(spatial, groups, strict=True):
        row[: len(group.parts[0].spatial)] = group.parts[0].spatial

    def per_part(name: str) -> NDArray[np.int64]:
        return np.array([[getattr(part, name) for part in group.parts] for group in groups])

    merged = np.array([group.merged for group in groups])
    return Batch(
        frames=upload(per_part("frame"), device),
        host_frames=per_part("frame"),
        spatial=upload(spatial, device),
        present=upload(np.arange(spatial.shape[1]) < sizes[:, None], device),
        spans=upload(per_part("num_frames")[:, 0], device),
        salient=upload(per_part("salient"), device),
        candidates=upload(per_part("candidates"), device),
        merged=upload(merged, device),
        keeps_all=upload(merged == np.array([group.num_left for group in groups]), device),
        groups=tuple(groups),
    )
