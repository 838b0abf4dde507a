"""What one packed pass of prefill holds: its segments, and the sequences that they begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tango_core.models.language.arena import KVArena
from tango_core.models.language.parts import Part, Prefix, Reply, RequestInWork
from tango_core.models.language.prefill import Segment
from tango_core.models.language.prompt import TextTokens
from tango_core.models.language.pruned_rows import counts


@dataclass(eq=False)
class DecodedSequence:
    """A reply that is being decoded.

    Attributes:
        work: The request that it belongs to.
        reply: What is known of it.
        slot: Its place in the arena.
        prefix: What it shares with other questions about its clip, if anything.
        index: Its place among the prompts of the request.
    """

    work: RequestInWork
    reply: Reply
    slot: int
    prefix: Prefix | None
    index: int

    @property
    def tokens(self) -> int:
        """Keys and values, its whole reply included."""
        return len(self.reply.prompt) + self.work.request.max_new_tokens

    def shifts(self, lengths: Sequence[Sequence[int]]) -> list[int]:
        """By how much a pruner that renumbers lowered the last position, per layer.

        Args:
            lengths: Keys and values that are held, by layer and slot.
        """
        positions, pruner = self.reply.prompt.positions, self.work.request.pruner
        held = [of_layer[self.slot] for of_layer in lengths]
        if pruner is None or not pruner.renumbers or not counts(positions[..., None, :]):
            return [0] * len(held)
        first, last = int(positions[0]), int(positions[-1])
        shortened = len(self.reply.prompt)
        return [0 if n == shortened else last - (first + n - 1) for n in held]


class PassLayout:
    """The parts that are prefilled together, in the slots of an arena.

    Args:
        arena: Its slots are taken; `undo` gives them back.

    Attributes:
        segments: Of all parts, in the order of the packed row.
        sequences: That begin in this pass.
        ends: By sequence, its segment.
        taken: Slots of this pass.
    """

    def __init__(self, arena: KVArena) -> None:
        self._arena = arena
        self._fresh: list[Prefix] = []
        self._resumed: list[Prefix] = []
        self.segments: list[Segment] = []
        self.sequences: list[DecodedSequence] = []
        self.ends: list[int] = []
        self.taken: list[int] = []

    def add(self, part: Part) -> None:
        """Append the segments of a part, and the sequences that they begin."""
        own = self._begin_prefix(part)
        for index in part.members:
            if own is None:
                slot = self._take()
            else:
                slot, own = own, None
            self.ends.append(len(self.segments))
            self.segments.append(_segment(part, index, slot))
            reply = part.work.replies[index]
            self.sequences.append(DecodedSequence(part.work, reply, slot, part.prefix, index))

    def share_out(self, seconds: float) -> None:
        """Book the time of the pass; that of a shared prefix goes to the first question."""
        of_slot = {one.slot: one for one in self.sequences}
        total = sum(segment.num_rows for segment in self.segments)
        for segment in self.segments:
            of_slot[segment.slot].reply.prefill += seconds * segment.num_rows / total

    def undo(self) -> None:
        """Give back what the pass has taken; its prefixes are nowhere again."""
        for prefix in self._fresh:
            prefix.slot, prefix.decoding = None, False
        for prefix in self._resumed:
            prefix.decoding = False
        for slot in self.taken:
            self._arena.give_back(slot)

    def _take(self) -> int:
        """A free slot."""
        slot = self._arena.take()
        self.taken.append(slot)
        return slot

    def _begin_prefix(self, part: Part) -> int | None:
        """The slot of a prefix in which no question is decoded; it goes on as the first one's."""
        prefix = part.prefix
        if prefix is None or (prefix.slot is not None and prefix.decoding):
            return None
        if prefix.slot is not None:
            self._resumed.append(prefix)
            prefix.decoding = True
            return prefix.slot
        slot = self._take()
        self._fresh.append(prefix)
        prefix.slot, prefix.decoding = slot, True
        places = part.work.request.prompts[part.members[0]].positions[..., : prefix.length]
        self.segments.append(Segment(prefix.spans, places, slot))
        return slot


def _segment(part: Part, index: int, slot: int) -> Segment:
    """The whole prompt of a question, or what follows on the prefix."""
    request, prefix = part.work.request, part.prefix
    prompt = request.prompts[index]
    if prefix is None:
        return Segment(prompt.spans, prompt.positions, slot, pruner=request.pruner)
    behind = len(prompt.question) - (len(prompt) - prefix.length)
    return Segment(
        (TextTokens(prompt.question[behind:]),),
        prompt.positions[..., prefix.length :],
        slot,
        prefix.slot,
        prefix.length,
    )
