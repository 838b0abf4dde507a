"""Pack many questions about one clip into one sequence: the clip is read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jobs.training.lessons import OPENING


@dataclass(frozen=True, eq=False)
class Packed:
    """Clips of equal length, each followed by its questions, which do not see each other.

    Attributes:
        opening: Ids before the clip.
        num_visual: Tokens of a clip, newline included.
        text: (B, L) int64 ids of all questions and replies, padded with 0.
        positions: (B, S) float32, every question counted on from the clip.
        mask: (B, 1, S, S) bool, `True` where attention is allowed.
        rows: (R,) sample and
        columns: (R,) place in the sequence of every state that predicts a word of a reply.
        targets: (R,) int64 ids of these words.
        question: (R,) which question they belong to, counted over the batch.
        kinds: Type of every question.
    """

    opening: tuple[int, ...]
    num_visual: int
    text: Tensor
    positions: Tensor
    mask: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    question: Tensor
    kinds: tuple[int, ...]


def pack(
    asked: Sequence[Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]]],
    num_tokens: int,
    pitch: float = 1.0,
) -> Packed:
    """Pack questions.

    Args:
        asked: Per clip its questions as (type, prompt, reply).
        num_tokens: Visual tokens of a clip, newline not included.
        pitch: Distance between the positions of neighbouring visual tokens.
    """
    start = len(OPENING) + num_tokens + 1
    longest = max(sum(len(p) + len(r) - 1 for _, p, r in one) for one in asked)
    size = start + longest
    text = torch.zeros(len(asked), longest, dtype=torch.long)
    positions = torch.zeros(len(asked), size)
    positions[:, :start] = _positions(num_tokens + 1, pitch)
    behind = len(OPENING) + pitch * (num_tokens + 1)
    segment = torch.full((len(asked), size), -1)
    segment[:, :start] = 0
    rows, columns, targets, question = [], [], [], []
    kinds: list[int] = []
    for row, one in enumerate(asked):
        at = 0
        for number, (kind, prompt, reply) in enumerate(one, start=1):
            ids = (*prompt, *reply[:-1])
            text[row, at : at + len(ids)] = torch.tensor(ids)
            here = slice(start + at, start + at + len(ids))
            positions[row, here] = behind + torch.arange(len(ids))
            segment[row, here] = number
            for offset, target in enumerate(reply):
                rows.append(row)
                columns.append(start + at + len(prompt) - 1 + offset)
                targets.append(target)
                question.append(len(kinds))
            kinds.append(kind)
            at += len(ids)
    same = (segment[:, None, :] == 0) | (segment[:, None, :] == segment[:, :, None])
    mask = same & torch.ones(size, size, dtype=torch.bool).tril()
    return Packed(
        OPENING,
        num_tokens + 1,
        text,
        positions,
        mask[:, None],
        torch.tensor(rows),
        torch.tensor(columns),
        torch.tensor(targets),
        torch.tensor(question),
        tuple(kinds),
    )


def _positions(num_visual: int, pitch: float) -> Tensor:
    """Positions of the opening and of a clip's tokens."""
    clip = len(OPENING) + pitch * torch.arange(num_visual)
    return torch.cat([torch.arange(len(OPENING)).float(), clip])
