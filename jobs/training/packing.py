"""Pack many questions about one clip into one sequence, so that the clip is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jobs.training.samples import PROMPT_START

PromptAndReply = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Type of a question, ids of its prompt, ids of its reply."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Clips of equal length, each followed by its questions, which do not attend to each other.

    A sequence is `PROMPT_START`, the visual tokens, a newline token, and `text`.

    Attributes:
        text: (B, L) int64 ids of all questions and replies, padded with 0.
        positions: (B, S) float32; the positions of every question start after the clip.
        mask: (B, 1, S, S) bool, `True` where attention is allowed.
        rows: (R,) sample of every state that predicts a word of a reply.
        columns: (R,) index in the sequence of these states.
        targets: (R,) int64 ids of these words.
        question: (R,) index in the batch of the question of these words.
        kinds: Type of every question.
    """

    text: Tensor
    positions: Tensor
    mask: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    question: Tensor
    kinds: tuple[int, ...]


def pack(
    questions: Sequence[Sequence[PromptAndReply]], num_tokens: int, increment: float = 1.0
) -> Packed:
    """Pack questions.

    Args:
        questions: The questions of every clip.
        num_tokens: Visual tokens of a clip, newline not included.
        increment: Position increment from one visual token to the next.
    """
    start = len(PROMPT_START) + num_tokens + 1
    longest = max(sum(len(p) + len(r) - 1 for _, p, r in one) for one in questions)
    size = start + longest
    text = torch.zeros(len(questions), longest, dtype=torch.long)
    positions = torch.zeros(len(questions), size)
    positions[:, :start] = _positions(num_tokens + 1, increment)
    after = len(PROMPT_START) + increment * (num_tokens + 1)
    segment = torch.full((len(questions), size), -1)
    segment[:, :start] = 0
    rows, columns, targets, question = [], [], [], []
    kinds: list[int] = []
    for row, one in enumerate(questions):
        used = 0
        for number, (kind, prompt, reply) in enumerate(one, start=1):
            ids = (*prompt, *reply[:-1])
            text[row, used : used + len(ids)] = torch.tensor(ids)
            here = slice(start + used, start + used + len(ids))
            positions[row, here] = after + torch.arange(len(ids))
            segment[row, here] = number
            for offset, target in enumerate(reply):
                rows.append(row)
                columns.append(start + used + len(prompt) - 1 + offset)
                targets.append(target)
                question.append(len(kinds))
            kinds.append(kind)
            used += len(ids)
    visible = (segment[:, None, :] == 0) | (segment[:, None, :] == segment[:, :, None])
    mask = visible & torch.ones(size, size, dtype=torch.bool).tril()
    return Packed(
        text=text,
        positions=positions,
        mask=mask[:, None],
        rows=torch.tensor(rows),
        columns=torch.tensor(columns),
        targets=torch.tensor(targets),
        question=torch.tensor(question),
        kinds=tuple(kinds),
    )


def _positions(num_visual: int, increment: float) -> Tensor:
    """Positions of the start of the prompt and of a clip's tokens."""
    clip = len(PROMPT_START) + increment * torch.arange(num_visual)
    return torch.cat([torch.arange(len(PROMPT_START)).float(), clip])
