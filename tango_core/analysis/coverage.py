"""Coverage: how well kept tokens represent all tokens of a clip, without a language model.

Coverage of a token is its cosine to the nearest kept token anywhere in the clip: 1 for a token kept
unchanged. Kept tokens are compared as they enter the language model, after merging. It costs a
matrix product per clip and method, so retentions can be compared before any question is answered;
how well it predicts accuracy is measured in
`jobs/recipes/shapes_analysis/README.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor

from tango_core.types import CompressedVideo

# Number of tokens that are compared with all kept tokens at once.
_AT_ONCE = 4096


def nearest_kept(tokens: Tensor, video: CompressedVideo) -> Tensor:
    """(T, L) float32 cosine of every token to the nearest kept token, in [-1, 1].

    Args:
        tokens: (T, L, D) all tokens of the clip, any float dtype.
        video: Kept tokens of the clip, at least one.
    """
    kept = F.normalize(video.tokens.float(), dim=-1).T.contiguous()
    parts = torch.split(tokens.flatten(0, 1), _AT_ONCE)
    found = [(F.normalize(part.float(), dim=-1) @ kept).amax(dim=-1) for part in parts]
    return torch.cat(found).clamp(-1, 1).view(tokens.shape[:2])


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rho; ties get their mean rank.

    Args:
        first: Numbers.
        second: Equally many numbers.

    Returns:
        In [-1, 1]; `None` for fewer than three pairs, or if all numbers of a list are equal.
    """
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(spearmanr(first, second).statistic)
