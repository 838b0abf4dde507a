"""The last step of methods that find what they keep in parts: one clip, positions ascending."""

from __future__ import annotations

import torch
from torch import Tensor

from tango_core.types import CompressedVideo, VisualFeatures


def in_order(
    positions: list[Tensor], values: list[Tensor], features: VisualFeatures
) -> CompressedVideo:
    """Put the parts together, ascending by position, in the dtype of the clip's tokens.

    Args:
        positions: Flat positions t*H*W + h*W + w of each part, (k,) int64, none twice.
        values: Their tokens, (k, D), kept as they are or merged.
        features: The clip that they come from.
    """
    order = torch.cat(positions).sort()
    places = torch.empty_like(order.indices)
    places[order.indices] = torch.arange(len(places), device=places.device)
    tokens = features.tokens.new_empty(len(places), features.tokens.shape[-1])
    for part, where in zip(values, places.split([len(part) for part in positions]), strict=True):
        tokens.index_copy_(0, where, part.to(tokens.dtype))
    return CompressedVideo(
        tokens=tokens,
        indices=order.values,
        grid=(len(features.tokens), *features.grid),
        timestamps=features.timestamps,
    )
