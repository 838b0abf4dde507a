"""Entropic optimal transport by Sinkhorn's iterations."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_STEPS = 100
# The iterations end when the row factors move by less than this on average. The factors are far
# below 1, so this is usually after two or three steps, as in the release of AOT.
TOLERANCE = 1e-2


def transport_plan(costs: Tensor, sharpness: float = 0.1) -> Tensor:
    """Plan between two uniform distributions; all groups of a call stop at the same step.

    Args:
        costs: (B, M, N).
        sharpness: Divides the costs; smaller values give sparser plans.

    Returns:
        (B, M, N) float32; columns sum to 1 / N, rows only approximately to 1 / M.
    """
    kernel = torch.exp(-costs.float() / sharpness)
    _, num_rows, num_columns = kernel.shape
    rows = kernel.new_ones(kernel.shape[:2])
    columns = kernel.new_ones(kernel.shape[0], num_columns)
    for _ in range(MAX_STEPS):
        before = rows
        rows = (1 / num_rows) / (kernel @ columns[..., None])[..., 0]
        columns = (1 / num_columns) / (rows[:, None] @ kernel)[:, 0]
        if (rows - before).abs().mean() < TOLERANCE:
            break
    return rows[..., None] * kernel * columns[:, None]
