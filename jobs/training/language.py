"""The language model while it is trained: initial weights, loss, and synthetic tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, LlavaOnevisionConfig

from jobs.training.packing import Packed
from jobs.training.samples import PROMPT_START, TARGET_WORDS, TYPE_NAMES, word_id
from tango_core.models.language.layer_loop import LayerLoop

# Scales of the initial weights: of queries and keys, and of what attention copies.
_MATCH_SCALE = 1.3
_COPY_SCALE = 0.25
_OFFSET_BIAS = 4.5


class LanguageTrainer(nn.Module):
    """Language model, tied output projection and newline token of the embedded model.

    Args:
        config: Of the whole model.

    Attributes:
        meaning: (len(TARGET_WORDS), D) initial embeddings of the words of synthetic tokens.
    """

    meaning: Tensor

    def __init__(self, config: LlavaOnevisionConfig) -> None:
        super().__init__()
        text = config.text_config
        self.language_model: Any = AutoModel.from_config(text, attn_implementation="sdpa")
        self.image_newline = nn.Parameter(torch.randn(text.hidden_size) / text.hidden_size**0.5)
        head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        head.weight = self.language_model.embed_tokens.weight
        self.lm_head = head
        self.register_buffer("meaning", torch.empty(len(TARGET_WORDS), text.hidden_size))
        initialise(self.language_model)
        with torch.no_grad():
            rows = [word_id(word) for word in TARGET_WORDS]
            self.meaning.copy_(self.language_model.embed_tokens.weight[rows])

    def forward(self, visual: Tensor, packed: Packed) -> Tensor:
        """Predict the words of all replies.

        Args:
            visual: (B, T * TOKENS_PER_FRAME, D) tokens of the clips.
            packed: Their questions.

        Returns:
            (R, vocabulary) logits.
        """
        embed = self.language_model.embed_tokens
        hidden = torch.cat(
            [
                embed(torch.tensor(PROMPT_START)).expand(len(visual), -1, -1),
                visual,
                self.image_newline.expand(len(visual), 1, -1),
                embed(packed.text),
            ],
            dim=1,
        )
        layer_loop = LayerLoop(self.language_model, self.lm_head)
        states = layer_loop.run(hidden, packed.positions, mask=packed.mask)
        return layer_loop.logits(states[packed.rows, packed.columns])

    def loss(self, visual: Tensor, packed: Packed) -> tuple[Tensor, dict[int, list[bool]]]:
        """Cross-entropy of the replies' words; and by type, which questions were answered right.

        A question counts as right if all words of its reply are right.
        """
        logits = self(visual, packed)
        loss = F.cross_entropy(logits.float(), packed.targets)
        hits = (logits.argmax(-1) == packed.targets).long()
        right = torch.ones(len(packed.kinds), dtype=torch.long)
        right.scatter_reduce_(0, packed.question, hits, "amin")
        by_kind: dict[int, list[bool]] = {}
        for kind, hit in zip(packed.kinds, right.tolist(), strict=True):
            by_kind.setdefault(kind, []).append(bool(hit))
        return loss, by_kind


def accuracy_by_type(by_kind: dict[int, list[bool]]) -> dict[str, float]:
    """Share of right answers by type."""
    return {f"right/{TYPE_NAMES[kind]}": sum(hits) / len(hits) for kind, hits in by_kind.items()}


@torch.no_grad()
def initialise(model: Any) -> None:
    """Initialise attention so that every head copies from tokens with equal content.

    Words get orthogonal embeddings. Queries and keys have equal orthogonal weights; the output
    weights are the transposed value weights. In the first layer two heads attend to the token one
    and two positions before, by biases alone.
    """
    text = model.config
    width, heads, size = text.hidden_size, text.num_attention_heads, text.head_dim
    weight = model.embed_tokens.weight
    weight.normal_(0, width**-0.5)
    used = min(width, len(weight))
    weight[:used] = _orthogonal(used, width)
    for index, layer in enumerate(model.layers):
        attention = layer.self_attn
        for head in range(heads):
            here = slice(head * size, (head + 1) * size)
            match, copy = _orthogonal(size, width), _orthogonal(size, width)
            attention.q_proj.weight[here] = _MATCH_SCALE * match
            attention.k_proj.weight[here] = _MATCH_SCALE * match
            attention.v_proj.weight[here] = copy
            attention.o_proj.weight[:, here] = _COPY_SCALE * copy.T
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            projection.bias.zero_()
        if index == 0:
            for head in (0, 1):
                _attend_before(attention, head, size, head + 1, model.rotary_emb.inv_freq)
        for projection in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            projection.weight.normal_(0, 0.5 * projection.weight.shape[1] ** -0.5)
        layer.mlp.down_proj.weight.mul_(0.5)


def _attend_before(attention: Any, head: int, size: int, offset: int, frequencies: Tensor) -> None:
    """Make a head attend to the token `offset` positions before, independent of its content."""
    here = slice(head * size, (head + 1) * size)
    attention.q_proj.weight[here] = 0
    attention.k_proj.weight[here] = 0
    angles = offset * frequencies
    attention.q_proj.bias[here] = _OFFSET_BIAS * torch.cat([angles.cos(), -angles.sin()])
    attention.k_proj.bias[here] = _OFFSET_BIAS * torch.cat(
        [torch.ones(size // 2), torch.zeros(size // 2)]
    )


def _orthogonal(rows: int, columns: int) -> Tensor:
    """(rows, columns) with orthonormal rows (or columns, if these are fewer)."""
    return nn.init.orthogonal_(torch.empty(rows, columns))


def synthetic_tokens(
    embeddings: Tensor, weights: Sequence[Tensor], noise: torch.Generator
) -> Tensor:
    """Noisy visual tokens from `token_targets`.

    Args:
        embeddings: (len(TARGET_WORDS), D) embeddings of the words.
        weights: Per clip (T * TOKENS_PER_FRAME, len(TARGET_WORDS)).
        noise: Source of random numbers.

    Returns:
        (B, T * TOKENS_PER_FRAME, D).
    """
    batch = torch.stack(list(weights))
    scale = 0.7 + 0.6 * torch.rand(*batch.shape[:2], 1, generator=noise)
    tokens = scale * (batch @ embeddings)
    return tokens + 0.05 * torch.randn(tokens.shape, generator=noise)
