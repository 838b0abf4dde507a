"""Continuous batching: requests about many clips and methods, prefilled and decoded together.

Requests wait until there is room for them among the tokens whose keys and values are held at once.
Then those that fit are prefilled in one packed pass (`prefill.py`), and all sequences there are
decode together (`decoding.py`); one that ends makes room for the next.

A request that fails does so alone. A pass that fails is repeated in halves, down to the request
that makes it fail; after a lack of memory, batches are half as large from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from tango_core.models.language.arena import KVArena
from tango_core.models.language.budget import MAX_SEQUENCES
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

# Capacities are multiples of this, so that an arena fits the next batch, too.
_ROUNDED_TO = 64
# Steps of decoding between two looks at the tokens on a device; each look waits for it.
_STEPS_PER_LOOK = 4


class BatchSession(AnswerSession[LaidOutRequest]):
    """Answers requests together, within a budget of tokens.

    Args:
        engine: Whose layers are used.
        batch_tokens: Tokens, replies included, whose keys and values are held at once; a part of a
            request that is larger is answered alone.
        guard: Is shown every error first, and raises if no other work can be done after it.
    """

    def __init__(
        self,
        engine: NativeEngine,
        batch_tokens: int,
        guard: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._engine = engine
        self._guard = guard
        self._loop = engine.layer_loop
        self._budget = batch_tokens
        self._waiting: deque[Part] = deque()
        self._running: list[DecodedSequence] = []
        self._finished: list[tuple[LaidOutRequest, list[Answer] | Exception]] = []
        self._arena: KVArena | None = None
        self._decoding: Decoding | None = None
        self._one_by_one = 0

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
        if not self._running and self._loop.device.type == "cpu" and not self._held(self._waiting):
            self._forget_arena()  # elsewhere its graph is worth keeping
        finished, self._finished = self._finished, []
        return finished

    # Choosing

    def _choose(self) -> list[Part]:
        """The parts that are prefilled next, in the order of their arrival; none for now."""
        if not self._waiting:
            return []
        held = sum(one.tokens for one in self._running)
        if self._running:
            # Half the budget at once: many small passes would cost more than they gain.
            if self._one_by_one or held > self._budget / 2:
                return []
            assert self._arena is not None
            return self._take(self._arena.capacity, self._arena.num_free, self._budget - held)
        front = self._waiting[0]
        most = 1 if self._one_by_one else MAX_SEQUENCES
        slots = capacity = tokens = 0
        chosen: list[Part] = []
        on_cpu = self._loop.device.type == "cpu"
        for part in self._waiting:
            larger, more = max(capacity, part.need), slots + len(part.members)
            # Only a CPU takes no memory for the end of a slot that nobody writes.
            tokens = tokens + part.tokens if on_cpu else larger * more
            if part is not front and (more > most or tokens > self._budget):
                break
            slots, capacity = more, larger
            chosen.append(part)
        if not self._arena_for(slots, capacity, front, self._held(chosen)):
            return []
        return self._take(capacity, slots, self._budget)

    def _take(self, capacity: int, slots: int, tokens: int) -> list[Part]:
        """Take parts from the front as long as they fit; the first one only has to have slots."""
        taken: list[Part] = []
        while self._waiting and not (self._one_by_one and taken):
            part = self._waiting[0]
            fits = part.tokens <= tokens or not (taken or self._running)
            if part.need > capacity or len(part.members) > slots or not fits:
                break
            taken.append(self._waiting.popleft())
            slots, tokens = slots - len(part.members), tokens - part.tokens
        self._one_by_one = max(0, self._one_by_one - len(taken))
        return taken

    @staticmethod
    def _held(parts: Iterable[Part]) -> int:
        """Slots of prefixes whose sequence has ended, in which questions of these parts go on."""
        prefixes = {id(part.prefix): part.prefix for part in parts if part.prefix is not None}
        return sum(one.slot is not None and not one.decoding for one in prefixes.values())

    def _arena_for(self, slots: int, capacity: int, front: Part, held: int) -> bool:
        """Make sure that there is an arena; `False` if not even the front part has room."""
        capacity = -(-capacity // _ROUNDED_TO) * _ROUNDED_TO
        arena = self._arena
        if (
            arena is not None
            and capacity <= arena.capacity <= 2 * capacity
            and slots <= arena.num_free + held
        ):
            return True
        self._forget_arena()
        try:
            self._arena = KVArena(self._loop.layers, slots, capacity, self._loop.dtype)
            return True
        except Exception as caught:
            self._guard(caught)
            if not is_out_of_memory(caught):
                raise
            error = caught.with_traceback(None)  # whose frames hold the layers made so far
        free_memory()
        self._budget = max(1, min(self._budget, slots * capacity // 2))
        if slots <= len(front.members):
            self._waiting.popleft()
            self._split_or_fail(front, error)
        return False

    def _forget_arena(self) -> None:
        """Give its memory back; prefixes that it held are computed again."""
        self._arena = self._decoding = None
        for part in self._waiting:
            if part.prefix is not None:
                part.prefix.slot, part.prefix.decoding = None, False

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
        steps = 1 if self._loop.device.type == "cpu" else _STEPS_PER_LOOK
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
        longest, eos_ids = one.work.request.max_new_tokens, self._engine.eos_ids
        for token in tokens:
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
            assert self._arena is not None
            self._arena.give_back(prefix.slot)
            prefix.slot = None
