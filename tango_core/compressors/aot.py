"""AOT: select anchors on the vision tower's grid and merge the rest into them by optimal transport.

Paper: https://arxiv.org/abs/2603.01400 (CVPR 2026). Settings and arithmetic are those of the
release (TyroneLi/AOT@88455ee) for LLaVA-OneVision; FAITHFULNESS.md lists the differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.compressors.base import Compressor
from tango_core.compressors.options import Count, Index, Ratio
from tango_core.errors import InputError
from tango_core.ops.saliency import pool_grid, rank_descending
from tango_core.types import CompressedVideo, VisualFeatures

Grid = tuple[int, int]

_WINDOWS = 3  # windows per side that shallow attention is ranked in
_STEP = 2 * _WINDOWS**2  # anchors per frame come in multiples of it
MAX_STEPS = 100
# The iterations end when the row factors move by less than this on average. The factors are far
# below 1, so this is usually after two or three steps, as in the release of AOT.
TOLERANCE = 1e-2


@dataclass(frozen=True, eq=False)
class _Segment:
    """What a segment of frames becomes.

    Attributes:
        first: (a,) int64 flat grid positions kept of the first frame.
        first_tokens: (a, D) their tokens before merging across frames.
        rest: (b,) int64 positions of tokens of later frames that are kept as they are.
        rest_tokens: (b, D).
        merged: (a, D) tokens of the first frame, merged with those of later frames.
        num_frames: Frames of the segment.
    """

    first: Tensor
    first_tokens: Tensor
    rest: Tensor
    rest_tokens: Tensor
    merged: Tensor
    num_frames: int


@dataclass(frozen=True)
class AOT(Compressor):
    """Two transport steps: inside every frame before pooling, then across the frames of a segment.

    In every frame `anchors` positions of the tower's grid are chosen, half of them by the attention
    of a shallow block, equally many in each of 3 x 3 windows, half by that of a deep block. All
    other tokens are merged into them; the frame is then pooled to the model's grid, and a cell is
    kept if at least half of its interpolated weight lies on anchors. Of the later frames of a
    segment, the `keep_ratio` tokens least certain about their counterpart stay, the others are
    merged into the tokens of the first frame.

    Attributes:
        retention: Largest share of the tokens to keep, in (0, 1], if `anchors` is 0. The number
            of kept cells depends on where the anchors lie, so less is kept.
        anchors: Positions per frame, a multiple of 18: 126 or 108 in the release. 0 for the largest
            number that stays within `retention`.
        keep_ratio: Share of the tokens of later frames that are not merged, in (0, 1).
        segment: Frames per segment; the release uses 4 for 32 frames.
        across_frames: Whether frames are merged; the release does not for LLaVA-Video.
    """

    needs = frozenset({"unpooled_tokens", "shallow_attention", "deep_attention"})

    anchors: Index = 0
    keep_ratio: Ratio = 0.3
    segment: Count = 4
    across_frames: bool = True

    def most_rounding(self, num_frames: int, grid: tuple[int, int]) -> float:
        """See `Compressor`: any number of cells below `retention` may be kept."""
        return num_frames * grid[0] * grid[1]

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        segments = self.segments(features)
        indices = torch.cat([torch.cat([one.first, one.rest]) for one in segments])
        tokens = torch.cat([torch.cat([one.merged, one.rest_tokens]) for one in segments])
        order = indices.argsort()
        return CompressedVideo(
            tokens=tokens[order].to(features.tokens.dtype),
            indices=indices[order],
            grid=(len(features.tokens), *features.grid),
            timestamps=features.timestamps,
        )

    def release_sequence(self, features: VisualFeatures) -> tuple[Tensor, Tensor, Tensor]:
        """The sequence that the release sends to the language model.

        It holds the tokens of a segment's first frame twice, unmerged and merged.

        Returns:
            (K,) int64 flat grid positions, (K,) int64 roles (0 first frame, 1 later frames, 2
            merged) and (K, D) tokens.
        """
        positions, roles, tokens = [], [], []
        for one in self.segments(features):
            parts = [(one.first, one.first_tokens), (one.rest, one.rest_tokens)]
            if one.num_frames > 1:
                parts.append((one.first, one.merged))
            for role, (places, values) in enumerate(parts):
                positions.append(places)
                roles.append(torch.full_like(places, role))
                tokens.append(values)
        return torch.cat(positions), torch.cat(roles), torch.cat(tokens)

    def segments(self, features: VisualFeatures) -> list[_Segment]:
        """Both transport steps, in float32."""
        unpooled = features.signal("unpooled_tokens")
        tower = _tower_grid(features.grid, unpooled.shape[1])
        shallow, deep = features.signal("shallow_attention"), features.signal("deep_attention")
        ranks = _ranks(shallow, tower), deep.float()
        count = self.anchors or self._largest(*ranks, tower, features.grid)
        chosen = _select(*ranks, count)
        tokens = pool_grid(_merge_in_frames(unpooled.float(), chosen, tower), tower, "bilinear")
        kept = _kept_cells(chosen, tower)
        size = self.segment if self.across_frames else 1
        cells = tokens.shape[1]
        found = []
        for start in range(0, len(tokens), size):
            frames = range(start, min(start + size, len(tokens)))
            places = [kept[frame].nonzero()[:, 0] for frame in frames]
            found.append(
                self._merge_across(
                    [tokens[frame, own] for frame, own in zip(frames, places, strict=True)],
                    [own + frame * cells for frame, own in zip(frames, places, strict=True)],
                )
            )
        return found

    def _largest(self, shallow: Tensor, deep: Tensor, tower: Grid, grid: Grid) -> int:
        """The largest number of anchors per frame whose kept tokens stay within `retention`."""
        num_frames, places = shallow.shape
        allowed = self.retention * num_frames * grid[0] * grid[1]
        size = self.segment if self.across_frames else 1
        best = _STEP
        for count in range(_STEP, places + 1, _STEP):
            sizes = _kept_cells(_select(shallow, deep, count), tower).sum(dim=1).tolist()
            kept = sum(
                number if frame % size == 0 else math.ceil(self.keep_ratio * (number - 1))
                for frame, number in enumerate(sizes)
            )
            if kept > allowed:
                break
            best = count
        return best

    def _merge_across(self, tokens: list[Tensor], places: list[Tensor]) -> _Segment:
        """Merge the later frames of a segment into the first one."""
        anchors = tokens[0]
        rest, rest_tokens = [places[0][:0]], [anchors[:0]]
        for distance in range(1, len(tokens)):
            later = tokens[distance]
            if not len(later) or not len(anchors):
                rest.append(places[distance])
                rest_tokens.append(later)
                continue
            cosines = F.normalize(later, dim=-1) @ F.normalize(anchors, dim=-1).T
            costs = 1 - cosines.clamp(-1 + 1e-6, 1 - 1e-6)
            costs = (costs - costs.min()) * (1 - math.exp(-(distance**2) / 4.5))
            plan = transport_plan(costs[None])[0]
            shares = plan / plan.sum(dim=1, keepdim=True).clamp(min=1e-12)
            certainty = shares.amax(dim=1)
            stays = certainty < _quantile(certainty.double(), self.keep_ratio)
            rest.append(places[distance][stays])
            rest_tokens.append(later[stays])
            shares, later = shares[~stays], later[~stays]
            anchors = (anchors + shares.T @ later) / (1 + shares.sum(dim=0))[:, None]
        return _Segment(
            places[0], tokens[0], torch.cat(rest), torch.cat(rest_tokens), anchors, len(tokens)
        )


def _quantile(values: Tensor, share: float) -> Tensor:
    """`torch.quantile` without a copy of `share` to the device."""
    place = share * (len(values) - 1)
    ordered = values.sort().values
    return torch.lerp(ordered[math.floor(place)], ordered[math.ceil(place)], place % 1)


def _tower_grid(grid: Grid, places: int) -> Grid:
    """The tower's grid of `places` positions that is pooled by two to `grid`.

    Raises:
        ValueError: If there is none.
    """
    height, width = grid
    for rows in (2 * height, 2 * height - 1):
        for columns in (2 * width, 2 * width - 1):
            if rows * columns == places:
                return rows, columns
    raise InputError(
        f"aot needs a tower grid that is pooled by 2, got {places} positions for {height} x "
        f"{width} tokens per frame; leave model.pooling_step at 2"
    )


def _ranks(shallow: Tensor, tower: Grid) -> Tensor:
    """(T, P) rank of every position among those of its window, by shallow attention."""
    rows, columns = (torch.arange(side) * _WINDOWS // side for side in tower)
    window = (rows[:, None] * _WINDOWS + columns).flatten().to(shallow.device)
    order = torch.empty_like(shallow, dtype=torch.int64)
    for one in range(_WINDOWS**2):
        own = (window == one).nonzero()[:, 0]
        order[:, own] = rank_descending(shallow[:, own].float()).argsort(dim=1)
    return order


def _select(shallow_ranks: Tensor, deep: Tensor, count: int) -> Tensor:
    """(T, P) bool, the anchors of every frame."""
    half = count // 2
    chosen = shallow_ranks < half // _WINDOWS**2
    left = deep.masked_fill(chosen, 0)
    best = rank_descending(left)[:, : count - half]
    return chosen.scatter(1, best, True)


def _merge_in_frames(tokens: Tensor, chosen: Tensor, tower: Grid) -> Tensor:
    """(T, P, D) tokens in which every anchor is merged with the other tokens of its frame."""
    num_frames, places, _ = tokens.shape
    number = int(chosen[0].sum())
    if number == places:
        return tokens
    order = (~chosen).sort(dim=1, stable=True).indices
    frames = torch.arange(num_frames, device=tokens.device)[:, None]
    own, others = order[:, :number], order[:, number:]
    anchors, rest = tokens[frames, own], tokens[frames, others]
    points = torch.cartesian_prod(
        *(torch.linspace(0, 1, side, device=tokens.device) for side in tower)
    )
    cosines = F.normalize(rest, dim=-1) @ F.normalize(anchors, dim=-1).transpose(1, 2)
    costs = 1 - cosines + 0.5 * torch.cdist(points[others], points[own])
    plan = transport_plan(costs)
    weights = 1 + plan.sum(dim=1).clamp(min=1e-9)
    soft = (anchors + plan.transpose(1, 2) @ rest) / weights[..., None]
    columns = torch.arange(number, device=tokens.device)
    nearest = (cosines.argmax(dim=2)[..., None] == columns).to(rest)
    sums = anchors + nearest.transpose(1, 2) @ rest
    hard = sums / (1 + nearest.sum(dim=1))[..., None]
    return tokens.index_put((frames, own), 0.9 * soft + 0.1 * hard)


def _kept_cells(chosen: Tensor, tower: Grid) -> Tensor:
    """(T, L) bool, the cells of the model's grid with at least half of their weight on anchors."""
    return pool_grid(chosen.float(), tower, "bilinear") >= 0.5


def transport_plan(costs: Tensor, sharpness: float = 0.1) -> Tensor:
    """Plan between two uniform distributions; all groups of a call stop at the same step.

    Args:
        costs: (B, M, N).
        sharpness: Divides the costs; smaller values give sparser plans.

    Returns:
        (B, M, N) float32; columns sum to 1 / N, rows only approximately to 1 / M.
    """
    kernel = torch.exp(-costs.float() / sharpness)
    _, num_rows, num_columns = kernel.shape
    rows = kernel.new_ones(kernel.shape[:2])
    columns = kernel.new_ones(kernel.shape[0], num_columns)
    for _ in range(MAX_STEPS):
        before = rows
        rows = (1 / num_rows) / (kernel @ columns[..., None])[..., 0]
        columns = (1 / num_columns) / (rows[:, None] @ kernel)[:, 0]
        if (rows - before).abs().mean() < TOLERANCE:
            break
    return rows[..., None] * kernel * columns[:, None]
