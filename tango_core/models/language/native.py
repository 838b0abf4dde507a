"""The engine of this project: greedy answers from a loop over stock layers of transformers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from tango_core.compressors.base import LayerPruner
from tango_core.models.language.batch import PaddedBatch, num_shared, repeat_cache
from tango_core.models.language.layer_loop import LayerLoop, VisualSpan
from tango_core.models.language.model import Engine
from tango_core.models.language.prompt import LaidOutPrompt, Span, TextTokens, VisualTokens
from tango_core.types import Answer

# Questions answered in one batch: each repeats the prefix's keys and values, 0.36 GB for 6,273
# tokens of a 7B model.
MAX_BATCH = 8


@dataclass(eq=False)
class _Reply:
    """A reply that is being generated; times in seconds."""

    tokens: list[int] = field(default_factory=list)
    prefill: float = 0.0
    first: float = 0.0
    decode: float = 0.0


class NativeEngine(Engine):
    """Answers prompts with the layers of a checkpoint, always taking the most likely token.

    A checkpoint's generation_config.json may ask for sampling or a repetition penalty; neither is
    used, so that replies can be repeated. Only its end-of-turn tokens are.

    Args:
        model: The language half, with `language_model` (a stock text model) and `lm_head`.
        decode_text: Token ids -> text without special tokens.
        eos_ids: Tokens that end a reply.

    Raises:
        ValueError: If the layers do something that `LayerLoop` does not support.
    """

    def __init__(
        self,
        model: nn.Module,
        decode_text: Callable[[list[int]], str],
        eos_ids: frozenset[int],
    ) -> None:
        half: Any = model
        self.model = model
        self.layer_loop = LayerLoop(half.language_model, half.lm_head)
        self.decode_text = decode_text
        self.eos_ids = eos_ids

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
        """Answer prompts about one clip; see `Engine.answer`.

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
            ValueError: If `max_new_tokens` is smaller than 1, or a prompt with several visual spans
                is to be pruned.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be 1 or larger, got {max_new_tokens}")
        groups: dict[tuple[Any, ...], list[int]] = {}
        for index, prompt in enumerate(prompts):
            groups.setdefault(_text_of(prompt.prefix), []).append(index)
        replies: dict[int, _Reply] = {}
        for members in groups.values():
            group = [prompts[index] for index in members]
            if pruner is None and share_prefix and use_cache and len(group) > 1:
                answered = self._together(group, max_new_tokens)
            else:
                answered = [self._alone(one, pruner, max_new_tokens, use_cache) for one in group]
            replies.update(zip(members, answered, strict=True))
        return [self._finish(prompt, replies[index]) for index, prompt in enumerate(prompts)]

    def embed(self, spans: Sequence[Span]) -> Tensor:
        """(S, D) embeddings of text and visual tokens."""
        return torch.cat(
            [
                self.layer_loop.embed(span.ids)
                if isinstance(span, TextTokens)
                else span.embeddings.to(self.layer_loop.device, self.layer_loop.dtype)
                for span in spans
            ]
        )

    def _alone(
        self,
        prompt: LaidOutPrompt,
        pruner: LayerPruner | None,
        max_new_tokens: int,
        use_cache: bool,
    ) -> _Reply:
        """Prefill one prompt and decode its reply."""
        start = self._clock()
        hidden = self.embed(prompt.spans)[None]
        positions = prompt.positions.to(hidden.device)[..., None, :]
        span = None if pruner is None else _visual_span(prompt, hidden.device)
        cache = DynamicCache() if use_cache else None
        output = self.layer_loop.run(hidden, positions, cache=cache, pruner=pruner, visual=span)
        prefilled = self._clock()
        reply = _Reply(prefill=prefilled - start)
        reply.tokens += self._most_likely(output)
        reply.first = self._clock() - start
        while not self._done(reply, max_new_tokens):
            step_start = self._clock()
            new, at = self.layer_loop.embed(reply.tokens[-1:])[None], positions[..., -1:] + 1
            if cache is not None:
                positions = at
                renumbered = pruner is not None and pruner.renumbers
                output = self.layer_loop.run(new, at, cache=cache, renumbered=renumbered)
            else:
                hidden = torch.cat([hidden, new], dim=1)
                positions = torch.cat([positions, at], dim=-1)
                output = self.layer_loop.run(
                    hidden, positions, pruner=pruner, visual=span, prompt_length=len(prompt)
                )
            reply.tokens += self._most_likely(output)
            reply.decode += self._clock() - step_start
        return reply

    def _together(self, group: list[LaidOutPrompt], max_new_tokens: int) -> list[_Reply]:
        """Prefill once what all prompts begin with, then answer batch by batch."""
        start = self._clock()
        first, shared = group[0], num_shared(group)
        length = first.prefix_length + shared
        hidden = self.embed((*first.prefix, TextTokens(first.question[:shared])))[None]
        prefix = DynamicCache()
        self.layer_loop.run(
            hidden, first.positions[..., None, :length].to(hidden.device), cache=prefix
        )
        prefix_seconds = self._clock() - start
        replies: list[_Reply] = []
        for offset in range(0, len(group), MAX_BATCH):
            prompts = group[offset : offset + MAX_BATCH]
            replies += self._continue(prompts, shared, prefix, prefix_seconds, max_new_tokens)
        replies[0].prefill += prefix_seconds
        return replies

    def _continue(
        self,
        prompts: list[LaidOutPrompt],
        shared: int,
        prefix: DynamicCache,
        prefix_seconds: float,
        max_new_tokens: int,
    ) -> list[_Reply]:
        """Answer prompts whose prefix, up to `shared` tokens behind the clip, is in `prefix`."""
        start = self._clock()
        batch = PaddedBatch.of(prompts, shared, self.layer_loop)
        cache = repeat_cache(prefix, len(prompts))
        output = self.layer_loop.run(
            batch.hidden, batch.positions, cache=cache, mask=batch.prefill_mask()
        )
        prefill = (self._clock() - start) / len(prompts)
        replies = [_Reply(prefill=prefill) for _ in prompts]
        tokens = self._most_likely(output)
        waited = prefix_seconds + self._clock() - start
        for reply, token in zip(replies, tokens, strict=True):
            reply.tokens.append(token)
            reply.first = waited

        while open_replies := [one for one in replies if not self._done(one, max_new_tokens)]:
            step_start = self._clock()
            positions, mask = batch.step()
            new = self.layer_loop.embed(tokens)[:, None]
            tokens = self._most_likely(self.layer_loop.run(new, positions, cache=cache, mask=mask))
            share = (self._clock() - step_start) / len(open_replies)
            for reply, token in zip(replies, tokens, strict=True):
                if not self._done(reply, max_new_tokens):
                    reply.tokens.append(token)
                    reply.decode += share
        return replies

    def _most_likely(self, hidden: Tensor) -> list[int]:
        """The most likely next token of every row; the first on ties."""
        best: list[int] = self.layer_loop.logits(hidden[:, -1]).float().argmax(dim=-1).tolist()
        return best

    def _done(self, reply: _Reply, max_new_tokens: int) -> bool:
        """Whether a reply has ended or reached its bound."""
        return reply.tokens[-1] in self.eos_ids or len(reply.tokens) >= max_new_tokens

    def _clock(self) -> float:
        """Seconds, after the device has finished what it was asked to do."""
        self.layer_loop.spread.synchronize()
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
            visual_tokens=prompt.num_visual,
        )


def _text_of(spans: Sequence[Span]) -> tuple[tuple[int, ...] | None, ...]:
    """Token ids of every text span, `None` for a visual one: what prompts may share."""
    return tuple(span.ids if isinstance(span, TextTokens) else None for span in spans)


def _visual_span(prompt: LaidOutPrompt, device: torch.device) -> VisualSpan:
    """Where the clip is, for a pruner, which drops tokens of one span."""
    found = [span for span in prompt.spans if isinstance(span, VisualTokens)]
    if len(found) != 1:
        raise ValueError(
            f"a prompt with {len(found)} visual spans cannot be pruned inside the language model; "
            "use a method that acts before it"
        )
    start = sum(map(len, prompt.spans[: prompt.spans.index(found[0])]))
    return VisualSpan(start, found[0].indices.to(device), found[0].grid)
