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
    return CompressedVideo(
        tokens=torch.cat(values).index_select(0, order.indices).to(features.tokens.dtype),
        indices=order.values,
        grid=(len(features.tokens), *features.grid),
        timestamps=features.timestamps,
    )
