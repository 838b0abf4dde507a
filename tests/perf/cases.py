"""Inputs of measurements: clips of 32 x 196 x 3584, a prompt of a 7B model, a cut checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    Qwen2Config,
    SiglipVisionConfig,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from llava_checkpoints import save_llava

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import LayerContext, LayerPruner
from tango_core.compressors.hybrid import INNER, checked_inner
from tango_core.types import VisualFeatures

NUM_FRAMES, GRID, DIM = 32, (14, 14), 3584
NUM_LAYERS, NUM_HEADS, KEY_DIM = 28, 28, 512
LEFT, RIGHT = 14, 75  # text tokens before and behind the clip
INNER_SHARE = 0.5
# Of 27 blocks of SigLIP so400m and 24 layers of Qwen2-0.5B: what a processor does in seconds. Fewer
# blocks make the encoder's share of the vision side smaller, and so the ratio of a sweep larger.
TOWER_BLOCKS, DECODER_LAYERS = 8, 6


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


def make_context(features: VisualFeatures) -> LayerContext:
    """A prompt that holds all tokens of a clip, at the input of layer 0.

    Attention (float32) and keys of whatever layer lie ready, for the tokens behind the clip.
    """
    generator = torch.Generator().manual_seed(2)
    visual = features.tokens.flatten(0, 1)
    device, dtype = visual.device, visual.dtype
    length = LEFT + len(visual) + RIGHT
    text = torch.randn(LEFT + RIGHT, DIM, generator=generator).to(device, dtype)
    rows = torch.randn(NUM_HEADS, RIGHT, length, generator=generator).softmax(dim=-1).to(device)
    keys = torch.randn(length, KEY_DIM, generator=generator).to(device, dtype)
    weight = torch.ones(DIM, device=device, dtype=dtype)

    def attention(positions: torch.Tensor) -> torch.Tensor:
        return rows[:, positions - (length - RIGHT)]

    return LayerContext(
        layer=0,
        num_layers=NUM_LAYERS,
        hidden=torch.cat([text[:LEFT], visual, text[LEFT:]]),
        visual=torch.arange(LEFT, LEFT + len(visual), device=device),
        after=LEFT + len(visual),
        num_visual=len(visual),
        previous_visual=torch.arange(len(visual), device=device),
        grid=(len(features.tokens), *features.grid),
        visual_indices=torch.arange(len(visual), device=device),
        attention=attention,
        keys=lambda: keys,
        norm=lambda states: F.rms_norm(states, (DIM,), weight, 1e-6),
        attention_ahead=attention,
        is_one_run=True,
    )


def make_features(
    kind: str, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> VisualFeatures:
    """Seeded features of 32 frames x 196 tokens x 3584 channels."""
    generator = torch.Generator().manual_seed(0)
    num_cells = GRID[0] * GRID[1]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, DIM, generator=generator)

    tokens = normal(NUM_FRAMES, num_cells)
    if kind != "noise":
        scenes = NUM_FRAMES // 4 if kind == "scenes" else 1
        still = normal(scenes, num_cells // 2).repeat_interleave(NUM_FRAMES // scenes, dim=0)
        tokens[:, : num_cells // 2] = still + 0.1 * tokens[:, : num_cells // 2]
    saliency = torch.randn(NUM_FRAMES, num_cells, generator=generator).softmax(dim=-1)
    return VisualFeatures(
        tokens=tokens.to(dtype).to(device),
        grid=GRID,
        timestamps=torch.arange(NUM_FRAMES, dtype=torch.float64) * 2,
        saliency=saliency.to(device),
        sinks=(28, 27, 41, 169, 11, 12),
    )


def save_cut_checkpoint(folder: Path) -> Path:
    """A LLaVA-OneVision-0.5B of real width and grid, few layers and random weights."""
    torch.manual_seed(0)
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=1152,
            num_hidden_layers=TOWER_BLOCKS,
            num_attention_heads=16,
            intermediate_size=4304,
            image_size=384,
            patch_size=14,
            vision_use_head=True,
        ),
        text_config=Qwen2Config(
            hidden_size=896,
            num_hidden_layers=DECODER_LAYERS,
            num_attention_heads=14,
            num_key_value_heads=2,
            intermediate_size=4864,
            vocab_size=128,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
            eos_token_id=3,
            bos_token_id=2,
            pad_token_id=0,
        ),
        image_token_index=5,
        video_token_index=4,
        tie_word_embeddings=True,
        vision_feature_layer=-1,
    )
    config._attn_implementation = "sdpa"
    model = LlavaOnevisionForConditionalGeneration(config).eval()
    return save_llava(model.half(), folder)


def cut_model(checkpoint: Path) -> dict[str, Any]:
    """The `model` section of a recipe for `save_cut_checkpoint`."""
    return {"name": "llava-onevision-7b", "path": str(checkpoint), "num_frames": 8}
