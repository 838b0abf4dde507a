"""Synthetic clips and prompts for the checks, and a model whose layers change no state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.ops.precision import full_precision
from tango_core.types import VisualFeatures


class ContractError(Exception):
    """A method breaks a promise; the message is one line."""


def require(kept: bool, reason: str) -> None:
    """Raise `ContractError` with the reason unless the promise is kept."""
    if not kept:
        raise ContractError(reason)


Kind = Literal["scene", "static", "noise", "duplicates"]
DIM = 32

# Name -> arguments of `make_clip`.
CLIPS: dict[str, dict[str, Any]] = {
    "one-frame": {"num_frames": 1},
    "two-frames": {"num_frames": 2},
    "eight-frames": {"num_frames": 8},
    "not-square": {"num_frames": 5, "grid": (3, 7)},
    "one-token-per-frame": {"num_frames": 6, "grid": (1, 1)},
    "static": {"kind": "static"},
    "noise": {"kind": "noise"},
    "duplicates": {"kind": "duplicates"},
}


def make_clip(
    num_frames: int = 8,
    grid: tuple[int, int] = (4, 4),
    kind: Kind = "scene",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    dim: int = DIM,
) -> VisualFeatures:
    """Make the features of one clip, deterministic in the arguments.

    Args:
        num_frames: T.
        grid: (H, W).
        kind: `scene` drifts slowly with a cut in the middle, `static` repeats one frame, `noise`
            has independent frames, `duplicates` consists of three distinct tokens.
        dtype: Data type of the tokens.
        seed: Random seed.
        dim: D.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens_per_frame = grid[0] * grid[1]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    if kind == "scene":
        scenes = normal(2, tokens_per_frame, dim)
        tokens = scenes.repeat_interleave(-(-num_frames // 2), 0)[:num_frames]
        tokens = tokens + 0.15 * normal(num_frames, tokens_per_frame, dim)
        tokens[:, ::3] += 2 * normal(num_frames, len(range(0, tokens_per_frame, 3)), dim)
    elif kind == "static":
        tokens = normal(1, tokens_per_frame, dim).expand(num_frames, -1, -1).clone()
    elif kind == "noise":
        tokens = normal(num_frames, tokens_per_frame, dim)
    else:
        which = torch.randint(3, (num_frames, tokens_per_frame), generator=generator)
        tokens = normal(3, dim)[which]
    scores = normal(2, num_frames, tokens_per_frame).softmax(dim=-1)
    return VisualFeatures(
        tokens=tokens.to(dtype),
        grid=grid,
        timestamps=torch.arange(num_frames, dtype=torch.float64) * 1.7,
        saliency=scores[0],
        attention=scores[1],
        keys=normal(num_frames, tokens_per_frame, 8),
        frame_embeddings=tokens.mean(dim=1),
        sinks=(0, tokens_per_frame - 1) if tokens_per_frame > 4 else (),
        question=normal(5, dim),
        tower_tokens=normal(num_frames, tokens_per_frame, 12),
        unpooled_tokens=normal(num_frames, 4 * tokens_per_frame, dim).to(dtype),
        shallow_attention=normal(num_frames, 4 * tokens_per_frame).softmax(dim=-1),
        deep_attention=normal(num_frames, 4 * tokens_per_frame).softmax(dim=-1),
        merged_attention=normal(num_frames, tokens_per_frame).softmax(dim=-1),
        text_aligned=normal(num_frames, tokens_per_frame, 10),
        aligned_question=normal(1, 10),
    )


NUM_LAYERS = 28

# Name -> arguments of `SyntheticPrompt`.
PROMPTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one-token": {"grid": (1, 1, 1)},
    "one-frame": {"grid": (1, 6, 6)},
    "one-token-per-frame": {"grid": (16, 1, 1)},
    "not-square": {"grid": (4, 3, 7)},
    "one-newline": {"grid": (4, 3, 3), "newlines": "end"},
    "newline-per-row": {"grid": (4, 3, 3), "newlines": "rows"},
    "no-text-before": {"left": 0},
    "one-text-token": {"left": 0, "right": 1},
    "static": {"change": 0.0},
    "text-before-every-frame": {"between": 3},
    "text-and-newlines": {"grid": (5, 2, 3), "between": 2, "newlines": "rows"},
}


@dataclass(frozen=True)
class SyntheticPrompt:
    """A prompt with random states.

    Attributes:
        grid: (T, H, W) of its clip.
        left: Number of text tokens before the clip.
        right: Number of text tokens after the clip, at least 1.
        newlines: `"none"`, `"end"` (one) or `"rows"` (one after every row).
        between: Number of text tokens before every frame, like time stamps; not with `"end"`.
        dim: Width of the states.
        dtype: Data type of the states.
        change: Difference between consecutive frames; 0 for identical frames.
        scale: Scale of the states.
        seed: Random seed.
    """

    grid: tuple[int, int, int] = (4, 3, 3)
    left: int = 3
    right: int = 5
    newlines: Literal["none", "end", "rows"] = "none"
    between: int = 0
    dim: int = 24
    dtype: torch.dtype = torch.float32
    change: float = 1.0
    scale: float = 1.0
    seed: int = 0

    def visual_indices(self) -> Tensor:
        """(n,) int64 flat grid positions of the visual tokens, -1 for newline tokens."""
        num_frames, height, width = self.grid
        indices = torch.arange(num_frames * height * width)
        if self.newlines == "end":
            return torch.cat([indices, torch.tensor([-1])])
        if self.newlines == "rows":
            rows = indices.reshape(-1, width)
            return torch.cat([rows, torch.full((len(rows), 1), -1)], dim=1).flatten()
        return indices

    def visual(self) -> Tensor:
        """(n,) int64 positions of the visual tokens in the sequence."""
        count = torch.arange(len(self.visual_indices()))
        if not self.between:
            return count + self.left
        return count + self.left + self.between * (count * self.grid[0] // len(count) + 1)

    def hidden(self) -> Tensor:
        """(S, dim) states of the whole prompt, a new tensor per call."""
        generator = torch.Generator().manual_seed(self.seed)
        num_frames, height, width = self.grid
        frame = torch.randn(height * width, self.dim, generator=generator)
        frames = []
        for _ in range(num_frames):
            frames.append(frame)
            frame = frame + self.change * torch.randn(height * width, self.dim, generator=generator)
        tokens = torch.cat(frames)
        indices = self.visual_indices()
        newline = torch.randn(1, self.dim, generator=generator)
        visual = torch.where(indices[:, None] < 0, newline, tokens[indices.clamp(min=0)])
        left = torch.randn(self.left, self.dim, generator=generator)
        right = torch.randn(self.right, self.dim, generator=generator)
        if self.between:
            stamps = torch.randn(num_frames, self.between, self.dim, generator=generator)
            blocks = visual.reshape(num_frames, -1, self.dim)
            visual = torch.cat([stamps, blocks], dim=1).flatten(0, 1)
        return (self.scale * torch.cat([left, visual, right])).to(self.dtype)


def attention_of(
    layer: int, length: int, seed: int = 0, heads: int = 2
) -> Callable[[Tensor], Tensor]:
    """Irregular causal probabilities of a layer: rows -> (heads, len(rows), length) float32."""

    def probabilities(rows: Tensor) -> Tensor:
        columns, head = torch.arange(length), torch.arange(heads)[:, None, None]
        phase = rows[:, None] * 12.9898 + columns * 78.233 + head * 37.719 + layer * 4.581 + seed
        logits = 3 * torch.sin(phase.double() ** 1.1).float()
        return logits.masked_fill(columns > rows[:, None], -torch.inf).softmax(dim=-1)

    return probabilities


def pruned_layers(
    pruner: LayerPruner,
    num_layers: int,
    prompt: SyntheticPrompt,
    place: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Iterator[tuple[LayerContext, Pruned]]:
    """Run a pruner on a prompt through layers that change no state; yields every call.

    Args:
        pruner: The pruner.
        num_layers: Number of layers.
        prompt: The prompt.
        place: Copies a tensor to the device of the model.
    """
    hidden, indices = place(prompt.hidden()), place(prompt.visual_indices())
    previous, visual = place(torch.arange(len(indices))), place(prompt.visual())
    scratch = dict[str, Any]()
    for layer in pruner.layers(num_layers):
        length = len(hidden)
        keys = place(prompt.hidden()[:length, :8])
        context = LayerContext(
            layer=layer,
            num_layers=num_layers,
            hidden=hidden,
            visual=visual,
            after=length - prompt.right,
            num_visual=len(indices),
            previous_visual=previous,
            grid=prompt.grid,
            visual_indices=indices,
            attention=attention_of(layer - 1, length, prompt.seed),
            keys=lambda keys=keys: keys,  # type: ignore[misc]
            norm=lambda states: torch.nn.functional.rms_norm(states, states.shape[-1:]),
            scratch=scratch,
            attention_ahead=attention_of(layer, length, prompt.seed),
            is_one_run=not prompt.between,
        )
        with full_precision():
            pruned = pruner.prune(context)
        yield context, pruned
        is_visual = torch.isin(pruned.keep, visual)
        previous = previous[torch.searchsorted(visual, pruned.keep[is_visual])]
        visual, hidden = is_visual.nonzero()[:, 0], pruned.hidden


def run_layers(
    pruner: LayerPruner, num_layers: int, prompt: SyntheticPrompt
) -> tuple[list[int], list[tuple[LayerContext, Pruned]]]:
    """Run a pruner on a prompt through all layers.

    Returns:
        The number of visual tokens that each layer processes, and (context, pruned) of every call.

    Raises:
        ContractError: If the pruner writes to its input states, drops or changes a text
            token, or returns invalid positions or states.
    """
    left, counts = len(prompt.visual_indices()), list[int]()
    calls, before = list[tuple[LayerContext, Pruned]](), prompt.hidden()
    for context, pruned in pruned_layers(pruner, num_layers, prompt):
        unchanged = torch.equal(context.hidden, before)
        require(unchanged, f"layer {context.layer}: it writes to context.hidden")
        _require_valid(context, pruned)
        calls.append((context, pruned))
        counts += [left] * (context.layer - len(counts))
        left -= len(context.hidden) - len(pruned.keep)
        before = pruned.hidden.clone()
    return counts + [left] * (num_layers - len(counts)), calls


def _require_valid(context: LayerContext, pruned: Pruned) -> None:
    """Raise unless text is unchanged, positions ascend and there is one state per position."""
    where = f"layer {context.layer}"
    length, dim = context.hidden.shape
    require(isinstance(pruned, Pruned), f"{where}: prune returns {type(pruned).__name__}")
    require(pruned.keep.dtype == torch.int64, f"{where}: keep is {pruned.keep.dtype}, not int64")
    keep = pruned.keep.tolist()
    require(keep == sorted(set(keep)), f"{where}: keep is not ascending and unique")
    require(set(keep) <= set(range(length)), f"{where}: keep has positions outside [0, {length})")
    text = sorted({*range(length)} - {*context.visual.tolist()})
    require(set(text) <= set(keep), f"{where}: text tokens are dropped")
    require(len(keep) > len(text), f"{where}: no visual token is left")
    shape, dtype = (len(keep), dim), context.hidden.dtype
    found = (*pruned.hidden.shape,), pruned.hidden.dtype
    require(found == (shape, dtype), f"{where}: hidden is {found}, not {(shape, dtype)}")
    require(bool(pruned.hidden.isfinite().all()), f"{where}: hidden holds NaN or infinite values")
    is_text = torch.isin(pruned.keep, torch.tensor(text, dtype=torch.int64))
    same = torch.equal(pruned.hidden[is_text], context.hidden[text])
    require(same, f"{where}: the states of text tokens are changed")
