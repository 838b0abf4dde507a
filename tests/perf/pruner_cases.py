"""What methods inside the language model are timed on: one prompt of a 7B model, made by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from compress_cases import DIM, GRID, NUM_FRAMES, make_features

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import LayerContext, LayerPruner
from tango_core.compressors.hybrid import INNER, checked_inner

NUM_LAYERS, NUM_HEADS, KEY_DIM = 28, 28, 512
LEFT, RIGHT = 14, 75  # text tokens before and behind the clip
INNER_SHARE = 0.5


def pruner_names() -> list[str]:
    """Methods that act inside, and the inner steps of hybrids."""
    return [*(name for name, cls in METHODS.items() if issubclass(cls, LayerPruner)), *INNER]


def build_pruner(name: str, retention: float) -> tuple[LayerPruner, tuple[int, ...], float]:
    """A pruner, the layers to run (the last one is the step to look at), and that layer's share.

    Inner steps keep half, as published, whatever the retention. A staged method is taken at its
    first stage; FrameFusion, whose share follows from the clip, at layer 0.
    """
    if name in INNER:
        pruner = checked_inner("tango", {"name": name, "retention": INNER_SHARE}, NUM_LAYERS)[1]
    else:
        built = build_method(name, retention=retention, num_layers=NUM_LAYERS).pruner
        assert built is not None
        pruner = built
    layers = pruner.layers(NUM_LAYERS)
    if name == "framefusion":
        return pruner, (0,), retention
    first = 2 if layers[0] == 0 else 1
    return pruner, layers[:first], pruner.layer_shares(NUM_LAYERS)[layers[first - 1]]


def make_contexts(
    kind: str, layers: tuple[int, ...], device: str, dtype: torch.dtype
) -> list[LayerContext]:
    """The prompt at the input of each of some layers; attention and keys lie ready.

    Args:
        kind: Of clip, see `compress_cases.Case`.
        layers: Layers about to run; their contexts share one scratch.
        device: Of all tensors.
        dtype: Of the hidden states; attention is float32 and lies ready for the tokens behind the
            clip.
    """
    generator = torch.Generator().manual_seed(2)
    num_visual = NUM_FRAMES * GRID[0] * GRID[1]
    length = LEFT + num_visual + RIGHT
    text = torch.randn(LEFT + RIGHT, DIM, generator=generator).to(device, dtype)
    visual = make_features(kind, device, dtype).tokens.flatten(0, 1)
    hidden = torch.cat([text[:LEFT], visual, text[LEFT:]])
    rows = torch.randn(NUM_HEADS, RIGHT, length, generator=generator).softmax(dim=-1).to(device)
    keys = torch.randn(length, KEY_DIM, generator=generator).to(device, dtype)
    weight = torch.ones(DIM, device=device, dtype=dtype)

    def attention(positions: torch.Tensor) -> torch.Tensor:
        return rows[:, positions - (length - RIGHT)]

    scratch: dict[str, object] = {}
    return [
        LayerContext(
            layer=layer,
            num_layers=NUM_LAYERS,
            hidden=hidden,
            visual=slice(LEFT, LEFT + num_visual),
            num_visual=num_visual,
            previous_visual=torch.arange(num_visual, device=device),
            grid=(NUM_FRAMES, *GRID),
            visual_indices=torch.arange(num_visual, device=device),
            attention=attention,
            keys=lambda: keys,
            norm=lambda states: F.rms_norm(states, (DIM,), weight, 1e-6),
            scratch=scratch,
            attention_ahead=attention,
        )
        for layer in layers
    ]
