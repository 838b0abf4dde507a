"""Split a clip into segments: static cells (HoliTom) or scene cuts (DySeg).

Similarities are computed on the device in one pass; the cuts themselves are planned on the host
from a few kilobytes, because a recurrence over frames would otherwise stop the device at every
comparison.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

MAX_WINDOW = 1024
WINDOW = 3  # pairs of half-precision frames converted to float32 at once


def adjacent_products(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norms of all tokens, and their inner products with the token of the next frame.

    Args:
        tokens: (T, L, D), any float dtype; computed in float32.

    Returns:
        (T, L) and (T - 1, L) float32.
    """
    num_frames, tokens_per_frame, _ = tokens.shape
    squares = torch.empty(num_frames, tokens_per_frame, device=tokens.device)
    products = torch.empty(num_frames - 1, tokens_per_frame, device=tokens.device)
    if tokens.device.type != "cpu":
        units = tokens.float()
        return torch.linalg.vecdot(units, units), torch.linalg.vecdot(units[:-1], units[1:])
    # One small matrix product per token computes both results with a single read.
    step = WINDOW if tokens.dtype != torch.float32 else max(1, num_frames - 1)
    for start in range(0, num_frames - 1, step):
        window = tokens[start : start + step + 1].float()
        both = torch.matmul(window[:-1, :, None], window.unfold(0, 2, 1))[:, :, 0]
        squares[start : start + len(both)], products[start : start + len(both)] = both.unbind(-1)
    last = tokens[-1].float()
    squares[-1] = torch.linalg.vecdot(last, last)
    return squares, products


def cosines(norms: Tensor, products: Tensor) -> Tensor:
    """(T - 1, L) cosines from (T, L) norms and (T - 1, L) inner products."""
    lengths = norms.clamp(min=1e-12)
    return products / lengths[:-1] / lengths[1:]


def static_segments(unchanged: np.ndarray, max_window: int = MAX_WINDOW) -> list[int]:
    """Split frames so that as many tokens as possible repeat the frame before (HoliTom, Tango).

    A window of w frames saves (w - 1) tokens for every position that stays unchanged throughout;
    dynamic programming finds the windows that save most. Of equally good splits, the one with the
    shorter last window is chosen.

    Args:
        unchanged: (T - 1, L) bool, whether a position is the same in frames i and i + 1.
        max_window: Longest window in frames.

    Returns:
        Lengths of the windows, in order; they add up to T.
    """
    num_pairs, tokens_per_frame = unchanged.shape
    runs = np.zeros(tokens_per_frame, dtype=np.int64)
    best = np.zeros(num_pairs + 2, dtype=np.int64)  # best[f]: most tokens that f frames save
    last = [1]
    for pair in range(num_pairs):
        # A window of s steps that ends with this pair saves s tokens for every position whose run
        # of unchanged steps is at least s long.
        runs = np.where(unchanged[pair], runs + 1, 0)
        num_at_least = np.bincount(runs, minlength=pair + 2)[::-1].cumsum()[::-1]
        steps = np.arange(1, max(2, min(pair + 2, max_window)))
        totals = best[pair + 1 - steps] + num_at_least[steps] * steps
        winner = int(totals.argmax())
        improves = max_window > 1 and totals[winner] > best[pair + 1]
        best[pair + 2] = totals[winner] if improves else best[pair + 1]
        last.append(int(steps[winner]) + 1 if improves else 1)
    lengths: list[int] = []
    frame = num_pairs
    while frame >= 0:
        lengths.append(last[frame])
        frame -= last[frame]
    return lengths[::-1]


def static_cells(unchanged: np.ndarray, lengths: list[int]) -> np.ndarray:
    """Which tokens stay unchanged throughout their segment.

    Args:
        unchanged: (T - 1, L) bool, whether a position is the same in frames i and i + 1.
        lengths: Frames of every segment, adding up to T.

    Returns:
        (T, L) bool, equal in all frames of a segment; false in a segment of one frame.
    """
    cells = np.zeros((len(unchanged) + 1, unchanged.shape[1]), dtype=bool)
    start = 0
    for length in lengths:
        if length > 1:
            pairs = unchanged[start : start + length - 1]
            cells[start : start + length] = pairs.all(axis=0)
        start += length
    return cells


def dyseg_cuts(frame_embeddings: Tensor, tau: float = 0.9, num_segments: int = 8) -> Tensor:
    """Find scene cuts by the similarity of whole frames (FastVID's DySeg).

    Args:
        frame_embeddings: (T, Dv) one vector per frame.
        tau: A cut follows every frame whose cosine with the next is below this.
        num_segments: Minimum number of segments (at most T): the least similar pairs are always
            cut, the earlier of equally similar pairs first.

    Returns:
        (T - 1,) bool, whether a segment ends with frame i.
    """
    units = F.normalize(frame_embeddings.float(), dim=-1)
    similarity = torch.linalg.vecdot(units[:-1], units[1:])
    cuts = similarity < tau
    least = similarity.sort(stable=True).indices[: max(num_segments - 1, 0)]
    forced: Tensor = cuts.scatter(0, least, True)
    return forced


def cut_segments(cuts: np.ndarray) -> list[int]:
    """Lengths of the segments between cuts.

    Args:
        cuts: (T - 1,) bool, whether a segment ends with frame i.

    Returns:
        Lengths in order; they add up to T.
    """
    ends = np.flatnonzero(np.append(cuts, True)) + 1
    return [int(length) for length in np.diff(ends, prepend=0)]
