"""Split requests into prefill parts that share a prefix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tango_core.compressors.base import LayerPruner
from tango_core.models.language.budget import MAX_BATCH
from tango_core.models.language.prompt import LaidOutPrompt, Span, TextTokens
from tango_core.types import Answer


@dataclass(frozen=True, eq=False)
class LaidOutRequest:
    """Prompts about one clip, to be answered by one method.

    Attributes:
        prompts: Any number of text and visual spans each.
        pruner: Drops visual tokens between layers; every prompt is then prefilled on its own.
        max_new_tokens: Upper bound per reply, 1 or larger.
        share_prefix: Whether prompts may share the computation of what they begin with.
    """

    prompts: Sequence[LaidOutPrompt]
    pruner: LayerPruner | None = None
    max_new_tokens: int = 16
    share_prefix: bool = True


@dataclass(eq=False)
class Reply:
    """A reply that is being generated; times in seconds.

    Attributes:
        prompt: What it is the reply to.
        tokens: So far.
        prefill: Its share of the passes that its prompt took part in.
        first: From the start of the first of them until its first token was known.
        decode: Its share of the steps that made the other tokens.
    """

    prompt: LaidOutPrompt
    tokens: list[int] = field(default_factory=list)
    prefill: float = 0.0
    first: float = 0.0
    decode: float = 0.0


@dataclass(eq=False)
class RequestInWork:
    """A request and its replies.

    Attributes:
        request: As it was added.
        replies: One per prompt.
        open: Replies that have not ended.
        failed: Whether it was given back with an error.
    """

    request: LaidOutRequest
    replies: list[Reply]
    open: int
    failed: bool = False
    answers: list[Answer] = field(default_factory=list)


@dataclass(eq=False)
class Prefix:
    """What prompts of several parts begin with.

    Attributes:
        spans: Text and clip.
        length: Tokens.
        slot: Where its keys and values are; `None` until a part has computed them.
        waiting: Parts that still need it.
        decoding: Whether the sequence that has this slot is still being decoded.
    """

    spans: tuple[Span, ...]
    length: int
    slot: int | None = None
    waiting: int = 0
    decoding: bool = False


@dataclass(eq=False)
class Part:
    """Prompts that are prefilled in the same pass.

    Attributes:
        work: Their request.
        members: Indices of the prompts.
        need: Tokens that a slot must have room for, of any prompt with this prefix.
        prefix: What the members share; `None` for a prompt of its own.
    """

    work: RequestInWork
    members: Sequence[int]
    need: int
    prefix: Prefix | None = None

    @property
    def tokens(self) -> int:
        """Keys and values of all members, their replies included."""
        longest = self.work.request.max_new_tokens
        return sum(len(self.work.replies[index].prompt) + longest for index in self.members)


def parts_of(work: RequestInWork) -> list[Part]:
    """Cut a request into parts, in the order of its prompts."""
    request, prompts = work.request, work.request.prompts
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, prompt in enumerate(prompts):
        shares = request.share_prefix and request.pruner is None
        key = _text_of(prompt.prefix) if shares else (index,)
        groups.setdefault(key, []).append(index)
    return [part for members in groups.values() for part in _parts_of_group(work, members)]


def single_parts(work: RequestInWork, members: Iterable[int]) -> list[Part]:
    """Prompts one by one, nothing shared."""
    return [Part(work, (index,), _need(work, [index])) for index in members]


def _parts_of_group(work: RequestInWork, members: Sequence[int]) -> list[Part]:
    """Cut prompts that share a prefix into parts."""
    if len(members) == 1:
        return single_parts(work, members)
    prompts = [work.request.prompts[index] for index in members]
    first, shared = prompts[0], num_shared(prompts)
    spans = (*first.prefix, TextTokens(first.question[:shared]))
    cuts = [members[at : at + MAX_BATCH] for at in range(0, len(members), MAX_BATCH)]
    prefix = Prefix(spans, first.prefix_length + shared, waiting=len(cuts))
    need = _need(work, members)
    return [Part(work, cut, need, prefix) for cut in cuts]


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


def _need(work: RequestInWork, members: Iterable[int]) -> int:
    """Room for the longest of some prompts with its reply."""
    longest = max(len(work.request.prompts[index]) for index in members)
    return longest + work.request.max_new_tokens


def _text_of(spans: Sequence[Span]) -> tuple[tuple[int, ...] | None, ...]:
    """Token ids of every text span, `None` for a visual one: what prompts may share."""
    return tuple(span.ids if isinstance(span, TextTokens) else None for span in spans)
