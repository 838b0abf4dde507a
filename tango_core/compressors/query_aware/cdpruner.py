"""CDPruner: keep tokens that are relevant to the question and unlike each other.

Paper: "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in
MLLMs", Zhang et al., 2025, Section 3, https://arxiv.org/abs/2506.10967. The release
(Theia-4869/CDPruner@9541616) handles images only; the variants for video are defined here.

The kernel of the determinantal point process is L[i, j] = q_i s_ij q_j with similarities s and
qualities q. The algorithm is the incremental Cholesky decomposition of Chen, Zhang and Zhou, "Fast
Greedy MAP Inference for Determinantal Point Process", NeurIPS 2018, Algorithm 1,
https://arxiv.org/abs/1709.05135.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.compressors.base import Combination, QuestionField, QuestionReading, keep, num_kept
from tango_core.ops.budgets import first_of_groups, group_counts
from tango_core.types import Question, VisualFeatures

Relevance = Literal["lm_mean", "lm", "clip_text"]
Variant = Literal["frame", "batch", "clip"]

# Below this gain the chosen items span all directions, and further gains are rounding errors.
MIN_GAIN = 1e-6
# `greedy_map_of_vectors` chooses among so many items at a time, and opens so many.
_CANDIDATES, _OPENED = 256, 1024


@dataclass(frozen=True)
class CDPruner(QuestionReading):
    """Greedy choice from a determinantal point process whose kernel is scaled by relevance.

    The kernel is L[i, j] = q_i cos(x_i, x_j) q_j over the projected tokens x, where q is the
    relevance of a token to the question, scaled to (0, 1]. It is computed in float64. When the
    chosen tokens span all directions, the most relevant remaining tokens follow; the release then
    returns fewer tokens than requested. Tokens of equal relevance all get q = 1, and zero tokens
    add no direction; the release computes NaN for both.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        relevance: How a token is compared with the question. `"lm_mean"`: cosine between the token
            and the mean input embedding of the question's text tokens (as OpenVINO GenAI does for
            Qwen2-VL, there with the chat template). `"lm"`: mean of the cosines with every text
            token. `"clip_text"`: negative mean cosine in the space that the vision encoder shares
            with a text encoder (the release).
        variant: `"frame"`: one kernel and one scale of relevance per frame, round(retention * L)
            tokens of every frame, at least 1. `"batch"`: the same with one scale of relevance for
            the clip, which is what the release computes if frames are its batch. `"clip"`: one
            kernel over all tokens of the clip.
        budget: For variants with one kernel per frame: `"official"` rounds the count of every
            frame, `"exact"` keeps round(retention * T * L) tokens in all.
        text: What relevance is computed from: the question alone, or with its options, one per
            line.
    """

    relevance: Relevance = "lm_mean"
    variant: Variant = "frame"
    budget: Literal["official", "exact"] = "official"
    text: Literal["question", "question_and_options"] = "question"

    @property
    def needs(self) -> frozenset[str]:
        """See `Compressor`."""
        return frozenset({"text_aligned"} if self.relevance == "clip_text" else ())

    @property
    def question_field(self) -> QuestionField:
        """See `Compressor`."""
        return "aligned_question" if self.relevance == "clip_text" else "question"

    def question_text(self, question: Question) -> str:
        """See `Compressor`."""
        read = self.question_read(question)
        return read.text if self.text == "question" else "\n".join((read.text, *read.choices))

    def _plan(self, features: VisualFeatures) -> Combination:
        return self._plans([features])[0]

    def _plans(self, questions: Sequence[VisualFeatures]) -> list[Combination]:
        """Plans for several questions about one clip, with one computation of the similarities."""
        features = questions[0]
        units = _unit(features.tokens)
        quality = torch.stack([self._quality(question, units) for question in questions])
        num_groups, size, _ = units.shape
        if self.variant == "clip":
            units, count = units.flatten(0, 1), num_kept(num_groups * size, self.retention)
            chosen = torch.stack(
                [greedy_map_of_vectors(units, one.flatten(), count) for one in quality]
            )
        else:
            counts = group_counts(num_groups, size, self.retention, self.budget)
            chosen = greedy_map(units @ units.transpose(1, 2), quality, max(counts))
            chosen = chosen + torch.arange(num_groups, device=chosen.device)[:, None] * size
            chosen = first_of_groups(chosen, counts)
        positions = chosen.sort(dim=-1).values
        return [keep(question, own) for question, own in zip(questions, positions, strict=True)]

    def _quality(self, features: VisualFeatures, units: Tensor) -> Tensor:
        """(T, L) float64 relevance in (0, 1]; `units` are the tokens, scaled to length 1."""
        if self.relevance == "clip_text":
            units, sign = _unit(features.signal("text_aligned")), -1
        else:
            sign = 1
        text = features.signal(self.question_field).to(units)
        if self.relevance == "lm_mean":
            text = text.mean(dim=0, keepdim=True)
        relevance = sign * (units @ _unit(text).mean(dim=0))
        scope = (1,) if self.variant == "frame" else (0, 1)
        low, high = relevance.amin(scope, keepdim=True), relevance.amax(scope, keepdim=True)
        scaled = (relevance - low + 1e-6) / (high - low + 1e-6)
        return torch.where(high - low > 1e-12, scaled, 1.0)


def _unit(rows: Tensor) -> Tensor:
    """Rows in float64, scaled to length 1; zero rows stay zero."""
    return F.normalize(rows.double(), dim=-1, eps=1e-12)


def greedy_map(similarity: Tensor, quality: Tensor, count: int) -> Tensor:
    """Choose items one by one, each with the largest gain of the kernel's log determinant.

    Ties go to the lowest position. Once the best gain of a group is at most `MIN_GAIN`, its
    remaining places go to the items of highest quality. There is no device synchronisation.

    Args:
        similarity: (G, N, N) float64, symmetric and positive semidefinite.
        quality: (B, G, N) float64 factors, not negative: B sets of qualities for the same
            similarities.
        count: Number of items to choose in every group, in [1, N].

    Returns:
        (B, G, count) int64 positions in the order of selection.
    """
    return _pivoted_cholesky(similarity, quality, count)[0]


def _pivoted_cholesky(similarity: Tensor, quality: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The choices of `greedy_map` and their (B, G, count, N) Cholesky rows."""
    num_sets, num_groups, num_items = quality.shape
    group = torch.arange(num_groups, device=quality.device).expand(num_sets, -1)
    gains = quality.square() * similarity.diagonal(dim1=1, dim2=2)
    fallback = quality.clone()
    rows = quality.new_zeros(num_sets, num_groups, count, num_items)
    chosen = group.new_empty(num_sets, num_groups, count)
    independent = torch.ones_like(group, dtype=torch.bool)
    infinite = quality.new_full((), torch.inf)
    for step in range(count):
        largest, best = gains.max(dim=-1)
        independent &= largest > MIN_GAIN
        best = torch.where(independent, best, fallback.argmax(dim=-1))
        chosen[..., step] = best
        at = best[..., None]
        row = similarity[group, best] * quality * quality.gather(-1, at)
        if step:
            earlier = rows[:, :, :step]
            column = earlier.gather(-1, at[..., None].expand(-1, -1, step, 1))
            row -= (column.transpose(-1, -2) @ earlier)[..., 0, :]
        row *= torch.where(independent, largest, infinite).rsqrt()[..., None]
        rows[:, :, step] = row
        gains -= row.square()
        gains.scatter_(-1, at, -torch.inf)
        fallback.scatter_(-1, at, -torch.inf)
    return chosen, rows


def greedy_map_of_vectors(units: Tensor, quality: Tensor, count: int) -> Tensor:
    """`greedy_map` of one large group, without the matrix of its similarities.

    The Cholesky row of a choice is the product of all vectors with a unit vector: the part of the
    choice that is orthogonal to earlier ones. Gains only fall, which saves two kinds of work. Items
    are opened in the order of their first gains, and rows are computed for open items only. The
    next choices are made among the open items with the largest gains, as long as one of them gains
    more than the best item beside them did before; then the rows of all these choices are computed
    at once. The device is waited for a few times per round, and not for every choice.

    Args:
        units: (N, D) float64 vectors whose inner products are the similarities.
        quality: (N,) float64 factors, not negative.
        count: Number of items to choose, in [1, N].

    Returns:
        (count,) int64 positions in the order of selection.
    """
    gains, positions = (quality.square() * units.square().sum(dim=1)).sort(
        descending=True, stable=True
    )
    vectors = units[positions].mul_(quality[positions, None])
    rows, basis = quality.new_zeros(count, len(units)), quality.new_zeros(count, units.shape[1])
    chosen = torch.empty(count, dtype=torch.int64, device=units.device)
    done = num_open = 0
    number = _CANDIDATES
    while done < count:
        next_gain = gains[num_open : num_open + 1]
        if len(next_gain) and not (gains[:num_open] > next_gain).any():
            opened = slice(num_open, num_open + _OPENED)
            torch.mm(basis[:done], vectors[opened].T, out=rows[:done, opened])
            gains[opened] -= rows[:done, opened].square().sum(dim=0)
            num_open = min(opened.stop, len(units))
            continue
        ranked = gains[:num_open].argsort(descending=True, stable=True)
        candidates, others = ranked[:_CANDIDATES].sort().values, ranked[_CANDIDATES:][:1]
        among, before = vectors[candidates], rows[:done, candidates]
        kernel = among @ among.T - before.T @ before
        kernel.diagonal().copy_(gains[candidates])
        # About as many choices are valid as in the last round.
        steps = min(len(candidates), count - done, 8 + 2 * number)
        (((order,),), ((factor,),)) = _pivoted_cholesky(
            kernel[None], torch.ones_like(kernel[None, :1]), steps
        )
        largest = factor.gather(1, order[:, None]).square()
        valid = (largest > MIN_GAIN).all(dim=1)
        # The first choice is the best of all items.
        valid[1:] &= (largest[1:] > torch.cat([gains[others], next_gain])).all(dim=1)
        number = int(valid.cumprod(dim=0).sum())
        if not number:  # the chosen items span all directions
            fallback = quality.index_fill(0, positions[chosen[:done]], -torch.inf)
            ranked = fallback.argsort(descending=True, stable=True)
            return torch.cat([positions[chosen[:done]], ranked[: count - done]])
        order, found = order[:number], slice(done, done + number)
        left = among[order] - before[:, order].T @ basis[:done]
        basis[found] = torch.linalg.solve_triangular(factor[:number, order].T, left, upper=False)
        torch.mm(basis[found], vectors[:num_open].T, out=rows[found, :num_open])
        gains[:num_open] -= rows[found, :num_open].square().sum(dim=0)
        gains.index_fill_(0, candidates[order], -torch.inf)
        chosen[found], done = candidates[order], found.stop
    return positions[chosen]
