"""VisionZip as the HoliTom repository adapts it to video, all frames at once."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.types import VisualFeatures


def compress(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Dominant tokens by attention, and spaced targets plus the mean of what is like them."""
    tokens, keys = features.tokens.float(), features.keys.float()
    num_frames, num_cells, _ = tokens.shape
    total = math.ceil(retention * num_cells)
    contextual = min(round(0.05 * num_cells), total - 1)
    dominant = features.attention.topk(total - contextual, dim=1).indices
    is_rest = torch.ones(num_frames, num_cells, dtype=torch.bool, device=tokens.device)
    is_rest.scatter_(1, dominant, False)
    rest = is_rest.nonzero()[:, 1].view(num_frames, -1)
    step = max(1, rest.shape[1] // contextual)
    is_target = torch.zeros(rest.shape[1], dtype=torch.bool, device=tokens.device)
    is_target[torch.arange(contextual) * step] = True
    targets, others = rest[:, is_target], rest[:, ~is_target]

    def rows(values: Tensor, cells: Tensor) -> Tensor:
        return values.gather(1, cells[..., None].expand(-1, -1, values.shape[-1]))

    units = F.normalize(keys, dim=-1)
    nearest = (rows(units, others) @ rows(units, targets).mT).argmax(dim=-1)
    members = F.one_hot(nearest, contextual).float()
    counts = members.sum(dim=1).clamp(min=1)[..., None]
    merged = rows(tokens, targets) + members.mT @ rows(tokens, others) / counts
    cells = torch.cat([dominant, targets], dim=1)
    values = torch.cat([rows(tokens, dominant), merged], dim=1)
    order = cells.sort(dim=1)
    starts = torch.arange(num_frames, device=tokens.device)[:, None] * num_cells
    return (order.values + starts).flatten(), rows(values, order.indices).flatten(0, 1)
