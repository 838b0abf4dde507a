"""SemVID: tokens of objects that the question names, of motion, and of every frame's context.

Paper: "Keeping the Evidence Chain: Semantic Evidence Allocation for Training-Free Token Pruning in
Video Temporal Grounding", ECCV 2026, https://arxiv.org/abs/2603.05663. The release
(JiaqiLi404/SemVID@432a769) has one version per model; this is the one for LLaVA-OneVision, with its
settings for video question answering as defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tango_core.compressors.base import Combination, QuestionReading, keep, num_kept
from tango_core.compressors.options import Count, Index, Ratio
from tango_core.ops.transfer import download_together, upload
from tango_core.types import VisualFeatures

# A question with more text tokens is represented by their mean.
_MAX_QUESTION_TOKENS = 128

Values = NDArray[np.float64]


@dataclass(frozen=True)
class SemVID(QuestionReading):
    """Allocate round(retention * T * L) tokens to frames, then to context, objects and motion.

    Frames get `min_tokens_per_frame`, and the rest in proportion to their relevance to the question
    and their change. In every frame the token nearest to the frame's mean and those of the largest
    norm are kept for context; then tokens that match the question's text tokens, by maximal
    marginal relevance; then tokens that differ most from the neighbouring frames.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1]; more are kept where
            `min_tokens_per_frame` asks for more.
        object_share: Share of a frame's tokens beyond its context that match the question, in
            [0, 1]; the others show motion.
        mmr_lambda: Weight of relevance against redundancy in the choice of objects, in [0, 1].
        min_tokens_per_frame: Context tokens of every frame, at least 1.
        frame_weight: Weight of relevance against change in the budget of a frame, in [0, 1].
        smooth_window: Frames over which relevance is averaged.
        motion_query_weight: Weight of relevance in the choice of motion tokens, in [0, 1].
        tau: Cosine of neighbouring frames below which a new segment starts.
        top_segments: Number of segments that get more than context; 0 for all.
        budget: `"exact"` lowers `min_tokens_per_frame` where it would keep too many tokens.
    """

    object_share: Ratio = 0.3
    mmr_lambda: Ratio = 0.5
    min_tokens_per_frame: Count = 5
    frame_weight: Ratio = 0.7
    smooth_window: Count = 3
    motion_query_weight: Ratio = 0.1
    tau: float = 0.0
    top_segments: Index = 0
    budget: Literal["official", "exact"] = "official"

    def most_rounding(self, num_frames: int, grid: tuple[int, int]) -> float:
        """See `Compressor`: only `min_tokens_per_frame` moves the count."""
        return num_frames * min(self.min_tokens_per_frame, grid[0] * grid[1])

    def _plan(self, features: VisualFeatures) -> Combination:
        tokens, question = features.tokens.float(), features.signal("question")
        num_frames, tokens_per_frame, _ = tokens.shape
        rows = _units(question.to(tokens))
        by_token = len(rows) <= _MAX_QUESTION_TOKENS
        if not by_token:
            rows = _units(question.to(tokens).mean(dim=0, keepdim=True))
        means, units = _units(tokens.mean(dim=1)), _units(tokens)
        matches, relevance, change, nearest, norms, motion, alike, similarity = (
            one.numpy().astype(np.float64)
            for one in download_together(
                [
                    units @ rows.T,
                    (means @ rows.T).topk(min(2, len(rows)), dim=1).values.mean(dim=1),
                    (means[1:] - means[:-1]).norm(dim=-1),
                    torch.einsum("tld,td->tl", units, means).argmax(dim=1).float(),
                    tokens.norm(dim=-1),
                    _motion(tokens),
                    units @ units.mT,
                    (means[1:] * means[:-1]).sum(dim=-1),
                ]
            )
        )
        least = min(self.min_tokens_per_frame, tokens_per_frame)
        wanted = num_kept(num_frames * tokens_per_frame, self.retention)
        if self.budget == "exact":
            least = min(least, wanted // num_frames)
        budgets = self._budgets(
            max(wanted, num_frames * least),
            least,
            _smoothed(relevance, self.smooth_window),
            np.concatenate([change[:1], change]) if num_frames > 1 else np.zeros(1),
            np.flatnonzero(similarity < self.tau) + 1,
            tokens_per_frame,
        )
        kept = [
            frame * tokens_per_frame
            + self._frame(
                int(budgets[frame]),
                max(least - 1, 0),
                int(nearest[frame]),
                matches[frame],
                norms[frame],
                motion[frame],
                alike[frame],
                by_token,
            )
            for frame in range(num_frames)
            if budgets[frame]
        ]
        return keep(features, upload(np.concatenate(kept), tokens.device))

    def _budgets(
        self,
        wanted: int,
        least: int,
        relevance: Values,
        change: Values,
        cuts: NDArray[np.int64],
        tokens_per_frame: int,
    ) -> NDArray[np.int64]:
        """(T,) number of tokens of every frame.

        Args:
            wanted: Their sum.
            least: Tokens of every frame.
            relevance: (T,) smoothed relevance of the frames.
            change: (T,) difference from the frame before.
            cuts: First frames of all segments but the first.
            tokens_per_frame: L.
        """
        num_frames = len(relevance)
        segments = np.split(np.arange(num_frames), cuts)
        scores = np.array([relevance[frames].mean() for frames in segments])
        weights = np.maximum(scores, 0)
        if weights.sum() < 1e-8:
            weights = scores - scores.min() + 1e-6
        if 0 < self.top_segments < len(segments):
            top = np.argsort(-weights, kind="stable")[: self.top_segments]
            weights = np.where(np.isin(np.arange(len(segments)), top), weights, 0)
        of_frames = self.frame_weight * np.maximum(relevance, 0) + (1 - self.frame_weight) * change
        budgets: NDArray[np.int64] = np.full(num_frames, least)
        shares = _apportion(weights, wanted - num_frames * least)
        for frames, share in zip(segments, shares, strict=True):
            budgets[frames] += _apportion(of_frames[frames], int(share))
        budgets = np.minimum(budgets, tokens_per_frame)
        weights = of_frames * (tokens_per_frame - budgets)
        while (left := wanted - budgets.sum()) > 0:  # every round fills a frame or ends
            room = tokens_per_frame - budgets
            budgets += np.minimum(_apportion(weights * (room > 0), int(left), room > 0), room)
        return budgets

    def _frame(
        self,
        budget: int,
        context: int,
        nearest: int,
        matches: Values,
        norms: Values,
        motion: Values,
        alike: Values,
        by_token: bool,
    ) -> NDArray[np.int64]:
        """Ascending positions of the tokens of one frame.

        Args:
            budget: How many to keep, at least 1.
            context: Number of context tokens beside the nearest one.
            nearest: Position of the token nearest to the frame's mean.
            matches: (L, M) cosines of tokens and text tokens.
            norms: (L,) norms of the tokens.
            motion: (L,) difference of a token from the neighbouring frames.
            alike: (L, L) cosines of the tokens.
            by_token: Whether the rows of the question are its text tokens.
        """
        is_open = np.ones(len(norms), dtype=bool)
        is_open[nearest] = False
        is_open[_best(norms, is_open, context)] = False
        extra = budget - int((~is_open).sum())
        objects = round(extra * self.object_share)
        best_match = np.maximum(matches.max(axis=0), 0)
        shares = _apportion(best_match, objects)
        for column in np.argsort(-best_match, kind="stable"):
            if shares[column]:
                self._take_objects(int(shares[column]), matches[:, column], alike, is_open)
        scores = motion
        if by_token and self.motion_query_weight > 1e-6:
            relevant = np.maximum(matches.max(axis=1), 0)
            scores = (1 - self.motion_query_weight) * _scaled(motion, is_open)
            scores = scores + self.motion_query_weight * _scaled(relevant, is_open)
        is_open[_best(scores, is_open, extra - objects)] = False
        missing = budget - int((~is_open).sum())
        is_open[_best(norms, is_open, missing)] = False
        return np.flatnonzero(~is_open)

    def _take_objects(
        self, count: int, relevance: Values, alike: Values, is_open: NDArray[np.bool_]
    ) -> None:
        """Close `count` open positions, chosen by maximal marginal relevance."""
        redundancy = np.full(len(relevance), -np.inf)
        for step in range(min(count, int(is_open.sum()))):
            scores = relevance
            if step:
                scores = self.mmr_lambda * relevance - (1 - self.mmr_lambda) * redundancy
            best = int(np.where(is_open, scores, -np.inf).argmax())
            is_open[best] = False
            redundancy = np.maximum(redundancy, alike[best])


def _units(rows: Tensor) -> Tensor:
    return F.normalize(rows, dim=-1, eps=1e-6)


def _motion(tokens: Tensor) -> Tensor:
    """(T, L) difference of every token from the neighbouring frames; 0 for a single frame."""
    steps = (tokens[1:] - tokens[:-1]).norm(dim=-1)
    if not len(steps):
        return tokens.new_zeros(tokens.shape[:2])
    return (torch.cat([steps[:1], steps]) + torch.cat([steps, steps[-1:]])) / 2


def _smoothed(values: Values, window: int) -> Values:
    """Mean over a window of odd length, with the first and last value repeated at the ends."""
    window += 1 - window % 2
    if len(values) < 3 or window < 3:
        return values
    window = min(window, len(values) if len(values) % 2 else len(values) - 1)
    padded = np.pad(values, window // 2, mode="edge")
    return np.convolve(padded, np.full(window, 1 / window), mode="valid")


def _apportion(
    weights: Values, total: int, allowed: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Whole shares of `total` in proportion to weights, by largest remainder.

    Shares are equal if all weights are 0. Only `allowed` entries get the remainders.
    """
    if weights.sum() < 1e-8:
        weights = np.ones(len(weights)) if allowed is None else allowed.astype(float)
    exact = weights / weights.sum() * total
    shares: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    remainders = exact - shares
    if allowed is not None:
        remainders[~allowed] = -1
    shares[np.argsort(-remainders, kind="stable")[: total - shares.sum()]] += 1
    return shares


def _best(scores: Values, is_open: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """The `count` open positions of the highest scores, or all that are open."""
    ranked = np.argsort(-np.where(is_open, scores, -np.inf), kind="stable")
    return ranked[: max(0, min(count, int(is_open.sum())))]


def _scaled(values: Values, is_open: NDArray[np.bool_]) -> Values:
    """Values divided by the largest one of an open position."""
    return values / float(max(values[is_open].max(initial=0), 1e-6))
