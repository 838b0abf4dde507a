"""Merging of similar neighbouring frames between two blocks of a vision tower (EarlyTom).

Frames are cut into groups: a frame joins the group while the moving average of its similarity to
the group's first frame stays above a threshold. The first and the last frame of a group stay; of
the frames between, neighbours that are more alike than the group's ends are averaged in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity


@dataclass(frozen=True, eq=False)
class MergedFrames:
    """Frames of a clip between two blocks.

    Attributes:
        states: (F, N, C) hidden states.
        attention: (F, N) float32 attention that every token receives in the block before.
        sources: (F,) int64, ascending; the (first) frame of the clip that a frame consists of.
    """

    states: Tensor
    attention: Tensor
    sources: Tensor


def merge_frames(
    frames: MergedFrames, *, threshold: float, momentum: float, window: int
) -> tuple[MergedFrames, Tensor]:
    """Group the frames, merge those inside of each group, and group the result again.

    Args:
        frames: Frames behind a block.
        threshold: A group ends where the moving average of similarities falls below it.
        momentum: Weight of the newest similarity in the moving average.
        window: A group has fewer frames than this.

    Returns:
        Between one and F frames, and their groups: (F,) int64, ascending from 0.
    """
    if len(frames.states) == 1:
        return frames, torch.zeros(1, dtype=torch.int64)
    grouped = partial(_groups, threshold=threshold, momentum=momentum, window=window)
    merged = [_merged_group(frames, *bounds) for bounds in grouped(frames.states)]
    states, attention, sources = (torch.cat(parts) for parts in zip(*merged, strict=True))
    bounds = grouped(states)
    lengths = torch.tensor([end - start + 1 for start, end in bounds])
    groups = torch.arange(len(bounds)).repeat_interleave(lengths)
    return MergedFrames(states, attention, sources), groups


def _groups(
    states: Tensor, threshold: float, momentum: float, window: int
) -> list[tuple[int, int]]:
    """First and last frame of every group."""
    found, start, average = [], 0, 1.0
    for index in range(1, len(states)):
        similarity = float(_similarity(states[start], states[index]))
        average = momentum * similarity + (1 - momentum) * average
        if average < threshold or index - start + 1 >= window:
            found.append((start, index - 1))
            start, average = index, 1.0
    return [*found, (start, len(states) - 1)]


def _similarity(one: Tensor, other: Tensor) -> Tensor:
    """Mean over the last axis but one of the cosine between (..., N, C) states."""
    return cosine_similarity(one, other, dim=-1).mean(dim=-1)


def _merged_group(frames: MergedFrames, start: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
    """States, attention and sources of one group's frames after merging."""
    states, attention = frames.states[start : end + 1], frames.attention[start : end + 1]
    sources = frames.sources[start : end + 1]
    if end - start < 3:
        return states, attention, sources
    limit = float(_similarity(states[0], states[-1]))
    shares, first = _pairs(_similarity(states[1:-2], states[2:-1]).tolist(), limit)
    states, attention = (
        torch.cat([one[:1], _blend(one[1:-1], first, shares), one[-1:]])
        for one in (states, attention)
    )
    return states, attention, torch.cat([sources[:1], sources[1:-1][first], sources[-1:]])


def _pairs(similarities: list[float], limit: float) -> tuple[list[float], list[int]]:
    """Frames that remain of those between a group's ends.

    Args:
        similarities: Of the neighbours, one fewer than there are frames.
        limit: Similarity above which neighbours are merged, if the next two are less alike.

    Returns:
        For every remaining frame its share in a pair with the next frame, 1 for a frame alone, and
        its index. As in the release, the last frame goes if it was not merged.
    """
    shares, firsts = [], []
    index = 0
    while index < len(similarities):
        similarity = similarities[index]
        following = similarities[index + 1] if index + 1 < len(similarities) else 0.0
        merges = similarity > limit and (index + 1 == len(similarities) or similarity > following)
        alone = not merges or following == 0
        shares.append(1.0 if alone else similarity / (similarity + following))
        firsts.append(index)
        index += 2 if merges else 1
    return shares, firsts


def _blend(values: Tensor, first: list[int], shares: list[float]) -> Tensor:
    """Weighted sums of the values at `first` and of the values behind them."""
    weights = torch.tensor(shares, dtype=torch.float32, device=values.device)
    weights = weights.view(-1, *[1] * (values.ndim - 1)).to(values.dtype)
    following = [index + 1 for index in first]
    return weights * values[first] + (1 - weights) * values[following]
