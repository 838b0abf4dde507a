"""Questions that go on from one prefilled prefix, padded to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from tango_core.models.language.layer_loop import LayerLoop
from tango_core.models.language.prompt import LaidOutPrompt


def num_shared(prompts: Sequence[LaidOutPrompt]) -> int:
    """How many tokens behind the clip all prompts have in common; each keeps one of its own.

    A protocol's instructions and LLaVA-Video's sentence about time, 400 tokens for 64 frames, are
    the same for every question of a clip.
    """
    # What the first and the last in dictionary order have in common, all between them have, too.
    questions = [prompt.question for prompt in prompts]
    pairs = enumerate(zip(min(questions), max(questions), strict=False))
    shortest = min(map(len, questions)) - 1
    return min(shortest, next((at for at, (one, other) in pairs if one != other), shortest))


def repeat_cache(prefix: DynamicCache, times: int) -> DynamicCache:
    """A cache of `times` sequences that all start with `prefix`, which stays as it is."""
    repeated = DynamicCache()
    for index, layer in enumerate(prefix.layers):
        keys, values = (part.expand(times, -1, -1, -1) for part in (layer.keys, layer.values))
        repeated.update(keys, values, index)
    return repeated


@dataclass(eq=False)
class PaddedBatch:
    """The rest of some prompts behind a prefix, padded on the left to equal length.

    Attributes:
        hidden: (B, S, D) embeddings.
        positions: (..., B, S) int64.
        visible: (B, prefix + S) bool, whether a key is real. A padded query sees the prefix, so no
            row of a mask is empty.
        padded: Whether any row is padded.
    """

    hidden: Tensor
    positions: Tensor
    visible: Tensor
    padded: bool

    @classmethod
    def of(
        cls, prompts: Sequence[LaidOutPrompt], shared: int, layer_loop: LayerLoop
    ) -> PaddedBatch:
        """Pad what follows the prefix, which ends `shared` tokens behind the clip."""
        rest = [prompt.question[shared:] for prompt in prompts]
        longest = max(map(len, rest))
        paddings = [longest - len(ids) for ids in rest]
        prefix_length = prompts[0].prefix_length + shared
        hidden = torch.stack(
            [
                layer_loop.embed((*ids[:1] * padding, *ids))
                for ids, padding in zip(rest, paddings, strict=True)
            ]
        )
        positions = torch.stack(
            [
                torch.cat(
                    [
                        prompt.positions.new_zeros((*prompt.positions.shape[:-1], padding)),
                        prompt.positions[..., prefix_length:],
                    ],
                    dim=-1,
                )
                for prompt, padding in zip(prompts, paddings, strict=True)
            ],
            dim=-2,
        ).to(layer_loop.device)
        visible = torch.ones(
            len(prompts), prefix_length + longest, dtype=torch.bool, device=layer_loop.device
        )
        for row, padding in enumerate(paddings):
            visible[row, prefix_length : prefix_length + padding] = False
        return cls(hidden, positions, visible, any(paddings))

    def prefill_mask(self) -> Tensor:
        """(B, 1, S, prefix + S) bool: real keys that are not later than the query."""
        num_new, num_keys = self.hidden.shape[1], self.visible.shape[1]
        causal = torch.ones(num_new, num_keys, dtype=torch.bool, device=self.visible.device)
        causal = causal.tril(num_keys - num_new)
        return (self.visible[:, None] & causal)[:, None]

    def step(self) -> tuple[Tensor, Tensor | None]:
        """Positions and mask of one more token in every row."""
        self.positions = self.positions[..., -1:] + 1
        self.visible = torch.cat([self.visible, self.visible.new_ones(len(self.visible), 1)], dim=1)
        return self.positions, self.visible[:, None, None] if self.padded else None
