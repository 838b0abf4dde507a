"""Greedy answers to the prompts about one clip: shared prefix, batched continuation, timers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache

from tango_core.compressors.base import LayerPruner
from tango_core.models.language.decoder import Decoder, VisualSpan
from tango_core.types import Answer

# Questions answered in one batch: each repeats the prefix's keys and values, 0.36 GB for 6,273
# tokens of a 7B model.
MAX_BATCH = 8


@dataclass(frozen=True, eq=False)
class LaidOutPrompt:
    """One question as the decoder sees it: text, the clip, text.

    Attributes:
        left: Token ids before the clip.
        visual: (V, D) embeddings of the clip's tokens, newline tokens included.
        visual_indices: (V,) int64 flat grid positions, -1 for newline tokens.
        grid: (T, H, W) of the clip before any compression.
        right: Token ids after the clip; not empty.
        positions: (..., S) int64 with S = len(left) + V + len(right).
    """

    left: tuple[int, ...]
    visual: Tensor
    visual_indices: Tensor
    grid: tuple[int, int, int]
    right: tuple[int, ...]
    positions: Tensor

    @property
    def prefix_length(self) -> int:
        """Tokens up to and including the clip."""
        return len(self.left) + len(self.visual)

    def __len__(self) -> int:
        return self.prefix_length + len(self.right)


@dataclass(eq=False)
class _Reply:
    """A reply in the making; times in seconds."""

    tokens: list[int] = field(default_factory=list)
    prefill: float = 0.0
    first: float = 0.0
    decode: float = 0.0


class GreedyGenerator:
    """Answers prompts with a decoder, always taking the most likely token.

    Args:
        decoder: The layers.
        eos_ids: Tokens that end a reply.
        decode_text: Token ids -> text without special tokens.
    """

    def __init__(
        self, decoder: Decoder, eos_ids: frozenset[int], decode_text: Callable[[list[int]], str]
    ) -> None:
        self.decoder = decoder
        self.eos_ids = eos_ids
        self.decode_text = decode_text

    @torch.inference_mode()
    def answer(
        self,
        prompts: Sequence[LaidOutPrompt],
        *,
        pruner: LayerPruner | None = None,
        max_new_tokens: int = 16,
        share_prefix: bool = True,
        use_cache: bool = True,
    ) -> list[Answer]:
        """Answer prompts about one clip.

        Prompts with the same text before the clip share the prefill of that text, of the clip, and
        of the words behind it that all of them begin with, and continue from there in batches. Of a
        batch every question carries an equal share of the time, so that sums over questions are the
        time spent; the shared prefill counts for the first question. `ttft_ms` is no share: it is
        how long the question had to wait from the start of the prefill it uses.

        Args:
            prompts: All about one clip.
            pruner: Drops visual tokens between layers; every prompt is then prefilled on its own.
            max_new_tokens: Upper bound per reply, 1 or larger.
            share_prefix: `False` prefills every prompt on its own.
            use_cache: `False` computes every new token from the whole sequence; slow, for checking.
                Implies no sharing.

        Raises:
            ValueError: If `max_new_tokens` is smaller than 1.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be 1 or larger, got {max_new_tokens}")
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, prompt in enumerate(prompts):
            groups.setdefault(prompt.left, []).append(index)
        replies: dict[int, _Reply] = {}
        for members in groups.values():
            group = [prompts[index] for index in members]
            if pruner is None and share_prefix and use_cache and len(group) > 1:
                answered = self._together(group, max_new_tokens)
            else:
                answered = [self._alone(one, pruner, max_new_tokens, use_cache) for one in group]
            replies.update(zip(members, answered, strict=True))
        return [self._finish(prompt, replies[index]) for index, prompt in enumerate(prompts)]

    def _alone(
        self,
        prompt: LaidOutPrompt,
        pruner: LayerPruner | None,
        max_new_tokens: int,
        use_cache: bool,
    ) -> _Reply:
        """Prefill one prompt and decode its reply."""
        start = self._clock()
        hidden = self._embed(prompt.left, prompt.visual, prompt.right)[None]
        positions = prompt.positions.to(hidden.device)[..., None, :]
        span = VisualSpan(len(prompt.left), prompt.visual_indices.to(hidden.device), prompt.grid)
        cache = DynamicCache() if use_cache else None
        output = self.decoder.run(hidden, positions, cache=cache, pruner=pruner, visual=span)
        prefilled = self._clock()
        reply = _Reply(prefill=prefilled - start)
        reply.tokens += self._most_likely(output)
        reply.first = self._clock() - start
        while not self._done(reply, max_new_tokens):
            step_start = self._clock()
            new, at = self.decoder.embed(reply.tokens[-1:])[None], positions[..., -1:] + 1
            if cache is not None:
                positions = at
                renumbered = pruner is not None and pruner.renumbers
                output = self.decoder.run(new, at, cache=cache, renumbered=renumbered)
            else:
                hidden = torch.cat([hidden, new], dim=1)
                positions = torch.cat([positions, at], dim=-1)
                output = self.decoder.run(
                    hidden, positions, pruner=pruner, visual=span, prompt_length=len(prompt)
                )
            reply.tokens += self._most_likely(output)
            reply.decode += self._clock() - step_start
        return reply

    def _together(self, group: list[LaidOutPrompt], max_new_tokens: int) -> list[_Reply]:
        """Prefill once what all prompts begin with, then answer batch by batch."""
        start = self._clock()
        first, shared = group[0], _num_shared(group)
        length = first.prefix_length + shared
        hidden = self._embed(first.left, first.visual, first.right[:shared])[None]
        prefix = DynamicCache()
        self.decoder.run(
            hidden, first.positions[..., None, :length].to(hidden.device), cache=prefix
        )
        prefix_seconds = self._clock() - start
        replies: list[_Reply] = []
        for offset in range(0, len(group), MAX_BATCH):
            batch = group[offset : offset + MAX_BATCH]
            replies += self._continue(batch, shared, prefix, prefix_seconds, max_new_tokens)
        replies[0].prefill += prefix_seconds
        return replies

    def _continue(
        self,
        batch: list[LaidOutPrompt],
        shared: int,
        prefix: DynamicCache,
        prefix_seconds: float,
        max_new_tokens: int,
    ) -> list[_Reply]:
        """Answer prompts whose prefix is in `prefix`, padded on the left to equal length.

        The prefix ends `shared` tokens behind the clip.
        """
        start = self._clock()
        device = self.decoder.device
        rest = [prompt.right[shared:] for prompt in batch]
        lengths = [len(ids) for ids in rest]
        longest = max(lengths)
        paddings = [longest - length for length in lengths]
        hidden = torch.stack(
            [
                self.decoder.embed((*ids[:1] * padding, *ids))
                for ids, padding in zip(rest, paddings, strict=True)
            ]
        )
        positions = torch.stack(
            [
                torch.cat(
                    [
                        prompt.positions.new_zeros((*prompt.positions.shape[:-1], padding)),
                        prompt.positions[..., prompt.prefix_length + shared :],
                    ],
                    dim=-1,
                )
                for prompt, padding in zip(batch, paddings, strict=True)
            ],
            dim=-2,
        ).to(device)
        # visible: (B, keys) whether a key is real; a padded query sees the prefix, so no row of the
        # mask is empty.
        visible = torch.ones(
            len(batch), prefix.get_seq_length() + longest, dtype=torch.bool, device=device
        )
        for row, padding in enumerate(paddings):
            visible[row, prefix.get_seq_length() : prefix.get_seq_length() + padding] = False
        causal = torch.ones(longest, visible.shape[1], dtype=torch.bool, device=device).tril(
            prefix.get_seq_length()
        )
        cache = _repeat(prefix, len(batch))
        output = self.decoder.run(
            hidden, positions, cache=cache, mask=(visible[:, None] & causal)[:, None]
        )
        prefill = (self._clock() - start) / len(batch)
        replies = [_Reply(prefill=prefill) for _ in batch]
        tokens = self._most_likely(output)
        waited = prefix_seconds + self._clock() - start
        for reply, token in zip(replies, tokens, strict=True):
            reply.tokens.append(token)
            reply.first = waited

        while open_replies := [one for one in replies if not self._done(one, max_new_tokens)]:
            step_start = self._clock()
            positions = positions[..., -1:] + 1
            visible = torch.cat([visible, visible.new_ones(len(batch), 1)], dim=1)
            mask = visible[:, None, None] if any(paddings) else None
            new = self.decoder.embed(tokens)[:, None]
            tokens = self._most_likely(self.decoder.run(new, positions, cache=cache, mask=mask))
            share = (self._clock() - step_start) / len(open_replies)
            for reply, token in zip(replies, tokens, strict=True):
                if not self._done(reply, max_new_tokens):
                    reply.tokens.append(token)
                    reply.decode += share
        return replies

    def _embed(self, left: Sequence[int], visual: Tensor, right: Sequence[int]) -> Tensor:
        """(S, D) embeddings of text, clip and text."""
        clip = visual.to(self.decoder.device, self.decoder.dtype)
        return torch.cat([self.decoder.embed(left), clip, self.decoder.embed(right)])

    def _most_likely(self, hidden: Tensor) -> list[int]:
        """The most likely next token of every row; the first on ties."""
        best: list[int] = self.decoder.logits(hidden[:, -1]).float().argmax(dim=-1).tolist()
        return best

    def _done(self, reply: _Reply, max_new_tokens: int) -> bool:
        """Whether a reply has ended or reached its bound."""
        return reply.tokens[-1] in self.eos_ids or len(reply.tokens) >= max_new_tokens

    def _clock(self) -> float:
        """Seconds, after the device has finished what it was asked to do."""
        if self.decoder.device.type == "cuda":
            torch.cuda.synchronize(self.decoder.device)
        return time.perf_counter()

    def _finish(self, prompt: LaidOutPrompt, reply: _Reply) -> Answer:
        """Turn token ids and seconds into an answer."""
        return Answer(
            text=self.decode_text(reply.tokens).strip(),
            choice=None,
            status="ok",
            prompt_tokens=len(prompt),
            new_tokens=len(reply.tokens),
            prefill_ms=reply.prefill * 1e3,
            ttft_ms=reply.first * 1e3,
            decode_ms=reply.decode * 1e3,
            visual_tokens=len(prompt.visual),
        )


def _num_shared(group: list[LaidOutPrompt]) -> int:
    """How many tokens behind the clip all prompts have in common; each keeps one of its own.

    A protocol's instructions and LLaVA-Video's sentence about time, 400 tokens for 64 frames, are
    the same for every question of a clip.
    """
    # What the first and the last in dictionary order have in common, all between them have, too.
    rights = [prompt.right for prompt in group]
    pairs = enumerate(zip(min(rights), max(rights), strict=False))
    shortest = min(map(len, rights)) - 1
    return min(shortest, next((at for at, (one, other) in pairs if one != other), shortest))


def _repeat(prefix: DynamicCache, times: int) -> DynamicCache:
    """A cache of `times` sequences that all start with `prefix`, which stays as it is."""
    repeated = DynamicCache()
    for index, layer in enumerate(prefix.layers):
        keys, values = (part.expand(times, -1, -1, -1) for part in (layer.keys, layer.values))
        repeated.update(keys, values, index)
    return repeated
