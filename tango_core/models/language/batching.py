"""Continuous batching: requests about many clips and methods, prefilled and decoded together.

Requests wait until there is room for them among the tokens whose keys and values are held at once.
Then those that fit are prefilled in one packed pass (`prefill.py`), and all sequences there are
decode together (`decoding.py`); one that ends makes room for the next. Where a slot costs its whole
capacity, those of similar length are served together (`sizes.py`).

A request that fails does so alone. A pass that fails is repeated in halves, down to the request
that makes it fail; after a lack of memory, batches are half as large from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from tango_core.models.language.choosing import Choosing
from tango_core.models.language.decoding import Decoding
from tango_core.models.language.parts import (
    LaidOutRequest,
    Part,
    Reply,
    RequestInWork,
    parts_of,
    single_parts,
)
from tango_core.models.language.pass_layout import DecodedSequence, PassLayout
from tango_core.models.language.prefill import Prefill
from tango_core.models.memory_faults import free_memory, is_out_of_memory
from tango_core.models.session import AnswerSession
from tango_core.types import Answer

if TYPE_CHECKING:
    from tango_core.models.language.native import NativeEngine

# Steps of decoding between two looks at the tokens on a device; each look waits for it. As many
# first tokens of a reply are looked at one by one: most replies end there.
_STEPS_PER_LOOK = 4


class BatchSession(Choosing, AnswerSession[LaidOutRequest]):
    """Answers requests together, within a budget of tokens.

    Args:
        engine: Whose layers are used.
        batch_tokens: Tokens, replies included, whose keys and values are held at once; a part of a
            request that is larger is answered alone.
        guard: Is shown every error first, and raises if no other work can be done after it.
        padded: Whether a slot costs its whole capacity, in memory and in every step. `None`: except
            on a CPU.
    """

    def __init__(
        self,
        engine: NativeEngine,
        batch_tokens: int,
        guard: Callable[[Exception], None] = lambda error: None,
        padded: bool | None = None,
    ) -> None:
        loop = engine.layer_loop
        padded = loop.device.type != "cpu" if padded is None else padded
        super().__init__(loop, batch_tokens, guard, padded)
        self._engine = engine
        self._finished: list[tuple[LaidOutRequest, list[Answer] | Exception]] = []

    @property
    def full(self) -> bool:
        """Whether the requests in work fill the budget."""
        waiting = sum(part.tokens for part in self._waiting)
        return waiting + sum(one.tokens for one in self._running) >= self._budget

    @property
    def busy(self) -> bool:
        """See `AnswerSession`."""
        return bool(self._waiting or self._running or self._finished)

    def add(self, request: LaidOutRequest) -> None:
        """See `AnswerSession`.

        Raises:
            ValueError: If `max_new_tokens` is smaller than 1.
        """
        if request.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be 1 or larger, got {request.max_new_tokens}")
        replies = [Reply(prompt) for prompt in request.prompts]
        work = RequestInWork(request, replies, len(replies))
        if not replies:
            self._finished.append((request, []))
        self._waiting.extend(parts_of(work))

    @torch.inference_mode()
    def step(self) -> list[tuple[LaidOutRequest, list[Answer] | Exception]]:
        """Prefill what has room, then decode until the tokens are looked at once."""
        if parts := self._choose():
            self._prefill(parts)
        if self._running:
            self._decode()
        if not self._running and not self._padded and not self._held(self._waiting):
            self._forget_arena()  # elsewhere its graph is worth keeping
        finished, self._finished = self._finished, []
        return finished

    # Prefill

    def _prefill(self, parts: Sequence[Part]) -> None:
        """One pass; if it fails, in halves."""
        try:
            self._pass(parts)
            return
        except Exception as caught:
            self._guard(caught)
            error = caught.with_traceback(None)  # whose frames hold the tensors of the pass
        if is_out_of_memory(error):
            self._keep_aside(0)
            free_memory()
            tokens = sum(part.tokens for part in parts)
            self._budget = max(1, min(self._budget, tokens // 2))
        if len(parts) > 1:
            half = len(parts) // 2
            self._prefill(parts[:half])
            self._prefill(parts[half:])
        elif is_out_of_memory(error) and self._running:
            self._waiting.appendleft(parts[0])  # for when the others have ended
            self._one_by_one += 1
        else:
            self._split_or_fail(parts[0], error)

    def _pass(self, parts: Sequence[Part]) -> None:
        """Prefill the parts together and know the first token of every reply."""
        assert self._arena is not None
        start = self._engine.clock()
        layout = PassLayout(self._arena)
        sequences = layout.sequences
        try:
            for part in parts:
                layout.add(part)
            hidden = Prefill(self._loop, self._arena, layout.segments).run()[layout.ends]
            seconds = self._engine.clock() - start
            decoding = self._decoding_for(sequences)
            decoding.begin(
                [one.slot for one in sequences],
                hidden,
                torch.stack([one.reply.prompt.positions[..., -1] for one in sequences], dim=-1),
                [one.shifts(self._arena.lengths) for one in sequences],
            )
            self._running += sequences
            firsts = decoding.read()[:, 0].tolist()
        except Exception:
            self._running = [one for one in self._running if one not in sequences]
            if self._decoding is not None:
                self._decoding.end({one.slot for one in sequences})
            layout.undo()
            raise
        waited = self._engine.clock() - start
        layout.share_out(seconds)
        for part in parts:
            if part.prefix is not None:
                part.prefix.waiting -= 1
        for one in sequences:
            one.reply.first = waited
            self._extend(one, [firsts[one.slot]])

    def _decoding_for(self, sequences: Sequence[DecodedSequence]) -> Decoding:
        """What decodes the sequences of the arena."""
        assert self._arena is not None
        longest = max(one.work.request.max_new_tokens for one in [*self._running, *sequences])
        if self._decoding is None or self._decoding.max_new_tokens < longest:
            axes = sequences[0].reply.prompt.positions.shape[:-1]
            self._decoding = Decoding(self._loop, self._arena, longest, axes, self._decoding)
        return self._decoding

    # Decoding

    def _decode(self) -> None:
        """Some steps for all sequences, then a look at their tokens."""
        assert self._decoding is not None
        start = self._engine.clock()
        bounds = [one.work.request.max_new_tokens - len(one.reply.tokens) for one in self._running]
        first = min(len(one.reply.tokens) for one in self._running) < _STEPS_PER_LOOK
        steps = _STEPS_PER_LOOK if self._padded and not first else 1
        try:
            for _ in range(min(steps, max(bounds))):
                self._decoding.step()
            tokens = self._decoding.read()
        except Exception as caught:
            self._guard(caught)
            self._again_one_by_one(caught.with_traceback(None))
            return
        share = (self._engine.clock() - start) / len(self._running)
        for one in tuple(self._running):
            one.reply.decode += share
            done = slice(len(one.reply.tokens), self._decoding.done(one.slot))
            self._extend(one, tokens[one.slot, done].tolist())

    def _extend(self, one: DecodedSequence, tokens: Sequence[int]) -> None:
        """Append tokens to a reply, up to its end."""
        if one.work.failed:
            return
        longest, eos_ids = one.work.request.max_new_tokens, self._engine.eos_ids
        for token in tokens:
            if token < 0:
                self._fail(one.work, self._engine.not_finite())
                return
            one.reply.tokens.append(token)
            if token in eos_ids or len(one.reply.tokens) >= longest:
                self._retire(one)
                one.work.open -= 1
                if not one.work.open:
                    answers = [self._engine.finish(reply) for reply in one.work.replies]
                    self._finished.append((one.work.request, answers))
                return

    def _retire(self, one: DecodedSequence) -> None:
        """A sequence has ended; its slot is free unless other parts need the prefix in it."""
        assert self._arena is not None
        assert self._decoding is not None
        self._running.remove(one)
        self._decoding.end({one.slot})
        prefix = one.prefix
        if prefix is not None and prefix.slot == one.slot:
            prefix.decoding = False
            if prefix.waiting:
                return
        self._arena.give_back(one.slot)

    def _again_one_by_one(self, error: Exception) -> None:
        """Answer all sequences there are again, each alone; a single one has failed."""
        running, self._running = self._running, []
        if is_out_of_memory(error):
            self._keep_aside(0)
            free_memory()
            self._budget = max(1, self._budget // 2)
        self._forget_arena()
        if len(running) == 1:
            self._fail(running[0].work, error)
            return
        for one in reversed(running):
            one.reply.tokens.clear()
            self._waiting.extendleft(single_parts(one.work, [one.index]))
        self._one_by_one += len(running)

    # Failures

    def _split_or_fail(self, part: Part, error: Exception) -> None:
        """A part has failed alone: its prompts are tried one by one if memory was short."""
        if len(part.members) > 1 and is_out_of_memory(error):
            self._waits_no_more(part)
            self._waiting.extendleft(reversed(single_parts(part.work, part.members)))
            self._one_by_one += len(part.members)
        else:
            self._fail(part.work, error)

    def _fail(self, work: RequestInWork, error: Exception) -> None:
        """Give a request back with what went wrong."""
        if work.failed:
            return
        work.failed = True
        for part in [part for part in self._waiting if part.work is work]:
            self._waits_no_more(part)
            self._waiting.remove(part)
        for one in [one for one in self._running if one.work is work]:
            self._retire(one)
        self._finished.append((work.request, error))

    def _waits_no_more(self, part: Part) -> None:
        """A part will not be prefilled; the slot of its prefix is free if it was the last one."""
        prefix = part.prefix
        if prefix is None:
            return
        prefix.waiting -= 1
        if not prefix.waiting and prefix.slot is not None and not prefix.decoding:
            self._arena_of(part).give_back(prefix.slot)
            prefix.slot = None
