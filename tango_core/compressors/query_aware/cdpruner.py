"""CDPruner: keep tokens that are relevant to the question and unlike each other.

Paper: "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in
MLLMs", Zhang et al., 2025, Section 3, https://arxiv.org/abs/2506.10967. The release
(Theia-4869/CDPruner@9541616) handles images only; the variants for video are defined here.
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
from tango_core.ops.determinantal import greedy_map, greedy_map_of_vectors
from tango_core.types import Question, VisualFeatures

Relevance = Literal["lm_mean", "lm", "clip_text"]
Variant = Literal["frame", "batch", "clip"]


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
            return self._kept(questions, chosen)
        counts = group_counts(num_groups, size, self.retention, self.budget)
        chosen = greedy_map(units @ units.transpose(1, 2), quality, max(counts))
        chosen = chosen + torch.arange(num_groups, device=chosen.device)[:, None] * size
        return self._kept(questions, first_of_groups(chosen, counts))

    def _kept(self, questions: Sequence[VisualFeatures], chosen: Tensor) -> list[Combination]:
        positions = chosen.sort(dim=-1).values
        return [keep(question, own) for question, own in zip(questions, positions, strict=True)]

    def _quality(self, features: VisualFeatures, units: Tensor) -> Tensor:
        """(T, L) float64 relevance in (0, 1]; `units` are the tokens, scaled to length 1."""
        if self.relevance == "clip_text":
            assert features.text_aligned is not None
            units, text, sign = _unit(features.text_aligned), features.aligned_question, -1
        else:
            text, sign = features.question, 1
        assert text is not None
        text = text.to(units)
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
