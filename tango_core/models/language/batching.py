"""Requests about many clips and methods, answered together in batches.

A request is cut into parts: prompts with a common beginning, which is prefilled once. Parts wait
until `step`; then as many as fit the token budget are prefilled in one packed pass and decoded
together until the last reply has ended.

A failing request does not affect the others. A batch that fails is repeated in halves until the
failing request is found; after an out-of-memory error, the token budget is halved permanently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tango_core.errors import InputError
from tango_core.models.base import AnswerSession, Guard, LLMShape, no_guard
from tango_core.models.language.layer_loop import counts
from tango_core.models.language.packed_pass import Segment, SequenceState, run_segments
from tango_core.models.language.prompt import LaidOutPrompt, LaidOutRequest, Span, TextTokens
from tango_core.models.memory_faults import free_memory, is_out_of_memory
from tango_core.types import Answer

# Questions that continue one prefix in the same batch. Each has a copy of the prefix's state: keys
# and values of 6,273 tokens of a 7B model are 0.36 GB.
MAX_BATCH = 8
# Maximum number of sequences at once, of any length.
MAX_SEQUENCES = 64

# Tokens processed together on a CPU, enough to amortise the overhead of a call. Small layers stay
# in the CPU's cache if there are few tokens; with many, the weights of large layers are read less
# often.
_SMALL_LAYER_BYTES = 8 * 2**20
_LEAST, _LARGE, _AT_MOST = 1024, 4096, 65_536


def auto_batch_tokens(shape: LLMShape, itemsize: int, free: int | None) -> int:
    """Value of `answer.batch_tokens: auto`, in tokens.

    On a GPU, as many as fit half of its free memory with their keys, values and intermediate
    results.

    Args:
        shape: Of the language model.
        itemsize: Bytes of a number of the model.
        free: Free bytes of a GPU after the weights are loaded, 0 for the smallest value; `None` on
            a CPU.
    """
    if free is None:
        is_small = shape.weights_of(0) * itemsize < _SMALL_LAYER_BYTES
        return _LEAST if is_small else _LARGE
    left = free // 2 - MAX_SEQUENCES * shape.state_bytes(itemsize)
    fitting = left // (shape.token_bytes(itemsize) + shape.row_bytes(itemsize))
    return max(_LARGE, min(_AT_MOST, fitting))


def held_tokens(budget: int, need: int, together: int, prompts: int) -> int:
    """Maximum number of tokens whose keys and values are held at once.

    Args:
        budget: `answer.batch_tokens`; 1 answers the parts of a request one after another.
        need: Tokens of the longest prompt including its reply.
        together: Prompts of a part (questions that share a prefix), which is never split.
        prompts: Number of prompts of the whole job.
    """
    part = (min(together, MAX_BATCH) + (together > 1)) * need
    return max(part, min(budget, min(MAX_SEQUENCES, prompts) * need))


@dataclass(eq=False)
class Reply:
    """A reply that is being generated; times in seconds.

    Attributes:
        prompt: The prompt that is answered.
        tokens: Token ids generated so far.
        prefill: The prompt's share of the time of its prefill pass, by its rows; the first question
            of a part gets the time of a shared prefix.
        first: Time from the start of its prefill pass to its first token.
        first_at: When its first token was known.
        decode: The reply's share of the time of its decoding steps.
        cache: Keys and values, until the reply has ended.
        shifts: Per layer, by how much a pruner that renumbers lowered the last position.
    """

    prompt: LaidOutPrompt
    tokens: list[int] = field(default_factory=list)
    prefill: float = 0.0
    first: float = 0.0
    first_at: float = 0.0
    decode: float = 0.0
    cache: SequenceState | None = None
    shifts: list[int] = field(default_factory=list)


@dataclass(eq=False)
class _Work:
    """A request in progress: its replies, and how many of them have not ended."""

    request: LaidOutRequest
    replies: list[Reply]
    open: int
    failed: bool = False


@dataclass(eq=False)
class _Prefix:
    """A common beginning of prompts, and its state once it is computed."""

    spans: tuple[Span, ...]
    length: int
    cache: SequenceState | None = None


@dataclass(eq=False)
class _Part:
    """Replies that are generated in the same batch, and the beginning that their prompts share."""

    work: _Work
    replies: Sequence[Reply]
    prefix: _Prefix | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens of the prefix and of all prompts, replies included."""
        own = sum(len(one.prompt) + self.work.request.max_new_tokens for one in self.replies)
        return own + (0 if self.prefix is None else self.prefix.length)


def _parts_of(work: _Work) -> list[_Part]:
    """Cut a request into parts, in the order of its prompts."""
    request = work.request
    shares = request.share_prefix and request.pruner is None
    groups: dict[Any, list[Reply]] = {}
    for index, reply in enumerate(work.replies):
        # Prompts share a prefix with the same text before and around the clip.
        texts = tuple(getattr(span, "ids", None) for span in reply.prompt.prefix)
        groups.setdefault(texts if shares else index, []).append(reply)
    parts = []
    for members in groups.values():
        prefix = None
        if len(members) > 1:
            first, shared = members[0].prompt, _num_shared([one.prompt for one in members])
            spans = (*first.prefix, TextTokens(first.question[:shared]))
            prefix = _Prefix(spans, first.prefix_length + shared)
        cuts = [members[at : at + MAX_BATCH] for at in range(0, len(members), MAX_BATCH)]
        parts += [_Part(work, cut, prefix) for cut in cuts]
    return parts


def _num_shared(prompts: Sequence[LaidOutPrompt]) -> int:
    """Number of tokens after the clip that all prompts share; each keeps at least one unshared.

    A protocol's instructions and LLaVA-Video's sentence about time, 400 tokens for 64 frames, are
    the same for every question of a clip.
    """
    # The common beginning of the lexicographically first and last is common to all.
    questions = [prompt.question for prompt in prompts]
    pairs = enumerate(zip(min(questions), max(questions), strict=False))
    shortest = min(map(len, questions)) - 1
    return min(shortest, next((at for at, (one, other) in pairs if one != other), shortest))


class BatchSession(AnswerSession[LaidOutRequest]):
    """Answers requests together, within a budget of tokens.

    Args:
        engine: `NativeEngine` whose layers are used.
        batch_tokens: Maximum number of tokens of a batch, replies included; a larger part of a
            request is answered alone.
        guard: Called with every error first; raises if no other request can be answered after it.
    """

    def __init__(self, engine: Any, batch_tokens: int, guard: Guard = no_guard) -> None:
        self._engine = engine
        self._loop = engine.layer_loop
        self._budget = batch_tokens
        self._guard = guard
        self._waiting: deque[_Part] = deque()
        self._finished: list[tuple[LaidOutRequest, list[Answer] | Exception]] = []

    @property
    def full(self) -> bool:
        """Whether the waiting requests fill the budget."""
        return sum(part.tokens for part in self._waiting) >= self._budget

    @property
    def busy(self) -> bool:
        """See `AnswerSession`."""
        return bool(self._waiting or self._finished)

    def add(self, request: LaidOutRequest) -> None:
        """See `AnswerSession`.

        Raises:
            ValueError: If `max_new_tokens` is smaller than 1.
        """
        if request.max_new_tokens < 1:
            raise InputError(f"max_new_tokens must be 1 or larger, got {request.max_new_tokens}")
        replies = [Reply(prompt) for prompt in request.prompts]
        if not replies:
            self._finished.append((request, []))
        self._waiting.extend(_parts_of(_Work(request, replies, len(replies))))

    @torch.inference_mode()
    def step(self) -> list[tuple[LaidOutRequest, list[Answer] | Exception]]:
        """Answer the next batch."""
        self._answer(self._take())
        finished, self._finished = self._finished, []
        return finished

    def _take(self) -> list[_Part]:
        """Take the first parts that fit the budget, at least one."""
        taken: list[_Part] = []
        tokens = replies = 0
        while self._waiting:
            part = self._waiting[0]
            tokens, replies = tokens + part.tokens, replies + len(part.replies)
            if taken and (tokens > self._budget or replies > MAX_SEQUENCES):
                break
            taken.append(self._waiting.popleft())
        return taken

    def _answer(self, parts: Sequence[_Part]) -> None:
        """Answer a batch; if it fails, its halves, and the replies of a part one by one."""
        parts = [part for part in parts if not part.work.failed]
        if not parts:
            return
        try:
            self._generate(parts)
            return
        except Exception as caught:
            self._guard(caught)
            error = caught.with_traceback(None)  # its frames hold the tensors of the pass
        for part in parts:
            for one in part.replies:
                one.tokens.clear()
                one.prefill, one.decode, one.cache = 0.0, 0.0, None
            if part.prefix is not None:
                part.prefix.cache = None
        if is_out_of_memory(error):
            free_memory()
            self._budget = max(1, min(self._budget, sum(part.tokens for part in parts) // 2))
        if len(parts) > 1:
            half = len(parts) // 2
            self._answer(parts[:half])
            self._answer(parts[half:])
        elif len(parts[0].replies) > 1 and is_out_of_memory(error):
            for reply in parts[0].replies:
                self._answer([_Part(parts[0].work, [reply])])
        else:
            self._fail(parts[0].work, error)

    def _generate(self, parts: Sequence[_Part]) -> None:
        """Generate all replies of a batch, and finish the requests that are complete with them."""
        active = self._prefill(parts)
        while active:
            start = self._engine.clock()
            segments = [
                Segment(
                    (TextTokens((one.tokens[-1],)),),
                    one.prompt.positions[..., -1:] + len(one.tokens),
                    one.cache,
                    shifts=one.shifts,
                )
                for _, one in active
                if one.cache is not None
            ]
            tokens = most_likely(self._loop.logits(run_segments(self._loop, segments))).tolist()
            share = (self._engine.clock() - start) / len(active)
            for _, one in active:
                one.decode += share
            active = self._extend(active, tokens)
        for part in parts:
            work = part.work
            work.open -= len(part.replies)
            if not work.open and not work.failed:
                answers = [self._engine.finish(reply) for reply in work.replies]
                self._finished.append((work.request, answers))

    def _prefill(self, parts: Sequence[_Part]) -> list[tuple[_Work, Reply]]:
        """Prefill parts in one pass and choose the first tokens; returns replies that go on."""
        start = self._engine.clock()
        segments: list[Segment] = []
        owners: list[Reply] = []
        ends: list[int] = []
        for part in parts:
            for reply in part.replies:
                own = self._segments(part, reply)
                segments += own
                owners += [reply] * len(own)
                ends.append(len(segments) - 1)
        hidden = run_segments(self._loop, segments)[ends]
        seconds = self._engine.clock() - start
        tokens = most_likely(self._loop.logits(hidden)).tolist()
        waited = self._engine.clock() - start
        total = sum(segment.num_rows for segment in segments)
        for segment, reply in zip(segments, owners, strict=True):
            reply.prefill += seconds * segment.num_rows / total
        active = [(part.work, reply) for part in parts for reply in part.replies]
        for work, reply in active:
            reply.first, reply.first_at = waited, start + waited
            reply.shifts = _shifts(reply, work.request)
        return self._extend(active, tokens)

    def _segments(self, part: _Part, reply: Reply) -> list[Segment]:
        """The segments of a prompt: all of it, or the prefix if it is new and the rows after it."""
        request, prefix, prompt = part.work.request, part.prefix, reply.prompt
        config = self._loop.config
        reply.cache = SequenceState(config, len(prompt) + request.max_new_tokens)
        if prefix is None:
            return [Segment(prompt.spans, prompt.positions, reply.cache, pruner=request.pruner)]
        behind = len(prompt.question) - (len(prompt) - prefix.length)
        own = TextTokens(prompt.question[behind:])
        shared, positions = prompt.positions.tensor_split([prefix.length], dim=-1)
        first = []
        if prefix.cache is None:
            prefix.cache = SequenceState(config, prefix.length)
            first = [Segment(prefix.spans, shared, prefix.cache)]
        return [*first, Segment((own,), positions, reply.cache, prefix.cache)]

    def _extend(
        self, active: Sequence[tuple[_Work, Reply]], tokens: Sequence[int]
    ) -> list[tuple[_Work, Reply]]:
        """Append a token to every reply; returns the replies that have not ended."""
        for (work, one), token in zip(active, tokens, strict=True):
            if token < 0:
                self._fail(work, self._engine.not_finite())
            one.tokens.append(token)
            if token in self._engine.eos_ids or len(one.tokens) >= work.request.max_new_tokens:
                one.cache = None
        return [(work, one) for work, one in active if one.cache is not None and not work.failed]

    def _fail(self, work: _Work, error: Exception) -> None:
        """Finish a request with an error."""
        if not work.failed:
            work.failed = True
            self._finished.append((work.request, error))


def most_likely(logits: Tensor) -> Tensor:
    """Choose the most likely next tokens.

    Args:
        logits: (n, V) any float dtype.

    Returns:
        (n,) int64, the first on ties; -1 where the largest logit is NaN or infinite.
    """
    largest, tokens = logits.float().max(dim=-1)  # NaN counts as the largest
    return tokens.masked_fill(~largest.isfinite(), -1)


def _shifts(reply: Reply, request: LaidOutRequest) -> list[int]:
    """By how much a pruner that renumbers lowered a prompt's last position, per layer."""
    prompt, pruner = reply.prompt, request.pruner
    if pruner is None or not pruner.renumbers or not counts(prompt.positions[..., None, :]):
        return []
    assert reply.cache is not None
    first, last = int(prompt.positions[0]), int(prompt.positions[-1])
    return [0 if n == len(prompt) else last - (first + n - 1) for n in reply.cache.lengths]
