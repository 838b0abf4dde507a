"""Saliency, attention, keys and frame embeddings against plain computations."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from qwen_frames import SIZES, clip, patches_of
from torch import nn

from tango_core.models.towers.patch_tower import LastBlock, PatchTowerOutput

GOLDEN = GOLDEN_DIR
SIGNALS = frozenset({"saliency", "attention", "keys", "frame_embeddings"})


def windowed(grid):
    """Raster positions of a frame's tokens, window by window of 4 x 4."""
    return [
        h * grid[1] + w
        for top in range(0, grid[0], 4)
        for left in range(0, grid[1], 4)
        for h in range(top, min(top + 4, grid[0]))
        for w in range(left, min(left + 4, grid[1]))
    ]


def last_block(qwen, frames, grid):
    """Queries, keys and unrotated keys of the last block: (T, L, 4, heads, d), raster order."""
    attention, seen = qwen.model.visual.blocks[-1].attn, {}

    def look(module, args, kwargs):
        seen["hidden"], seen["rotary"] = args[0], kwargs["position_embeddings"]

    patches, thw = patches_of(frames, grid)
    handle = attention.register_forward_pre_hook(look, with_kwargs=True)
    with torch.no_grad():
        qwen.model.visual(patches, grid_thw=thw)
        packed = attention.qkv(seen["hidden"]).view(len(patches), 3, attention.num_heads, -1)
    handle.remove()

    def rotate(x):
        first, second = x.chunk(2, dim=-1)
        cosine, sine = (part[:, None] for part in seen["rotary"])
        return x * cosine + torch.cat([-second, first], dim=-1) * sine

    result = []
    for part in (rotate(packed[:, 0]), rotate(packed[:, 1]), packed[:, 1]):
        tokens = part.reshape(int(thw[0, 0]), math.prod(grid), 4, *part.shape[1:])
        raster = torch.empty_like(tokens)
        raster[:, windowed(grid)] = tokens
        result.append(raster)
    return result


@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_saliency_is_the_mean_query_s_attention_in_raster_order(qwen, encoder, grid):
    frames = clip(4, grid)
    queries, keys, _ = last_block(qwen, frames, grid)
    query, key = queries.mean(dim=(1, 2)), keys.mean(dim=2)
    logits = torch.einsum("thd,tlhd->thl", query, key) / math.sqrt(key.shape[-1])
    expected = logits.softmax(dim=-1).mean(dim=1)
    saliency = encoder.encode(frames, frozenset({"saliency"})).saliency
    torch.testing.assert_close(saliency, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_attention_is_what_all_patches_of_the_frame_pay_to_a_token(qwen, encoder, grid):
    frames = clip(4, grid)
    queries, keys, _ = (part.flatten(1, 2) for part in last_block(qwen, frames, grid))
    logits = torch.einsum("tphd,tqhd->thpq", queries, keys) / math.sqrt(keys.shape[-1])
    received = logits.softmax(dim=-1).mean(dim=(1, 2)).view(2, -1, 4).sum(dim=-1)
    attention = encoder.encode(frames, frozenset({"attention"})).attention
    torch.testing.assert_close(attention, received, rtol=1e-4, atol=1e-6)


def test_attention_does_not_depend_on_how_many_heads_are_in_memory(encoder, monkeypatch):
    frames = clip(2, (3, 5))
    whole = encoder.encode(frames, frozenset({"attention"})).attention
    monkeypatch.setattr("tango_core.models.towers.patch_tower._PROBABILITIES_AT_ONCE", 1)
    one_by_one = encoder.encode(frames, frozenset({"attention"})).attention
    torch.testing.assert_close(one_by_one, whole, rtol=1e-5, atol=1e-7)


def test_keys_are_means_over_heads_and_patches_without_places(qwen, encoder):
    frames, grid = clip(4, (5, 9)), (5, 9)
    _, _, keys = last_block(qwen, frames, grid)
    got = encoder.encode(frames, frozenset({"keys"})).keys
    torch.testing.assert_close(got, keys.mean(dim=(2, 3)), rtol=1e-4, atol=1e-5)


def test_frame_embeddings_are_means_of_the_tokens(encoder):
    features = encoder.encode(clip(4, (3, 5)), frozenset({"frame_embeddings"}))
    torch.testing.assert_close(features.frame_embeddings, features.tokens.mean(dim=1))


def test_saliency_of_the_release_s_queries_and_keys():
    """Golden vectors are in window order: the identity as raster order leaves them there."""
    with np.load(GOLDEN / "unit_saliency_qwen25.npz") as data:
        golden = {key: torch.from_numpy(data[key]) for key in data.files}
    num_patches, heads, _ = golden["q"].shape
    num_frames = int(golden["grid_thw"][0])
    packed = torch.stack([golden["q"], golden["k"], golden["k"]], dim=1).flatten(1)
    attention = SimpleNamespace(qkv=nn.Identity(), num_heads=heads)
    block = SimpleNamespace(norm1=nn.Identity(), attn=attention)
    rotary = (golden["cos"], golden["sin"])
    output = PatchTowerOutput(
        tokens=torch.empty(num_frames, num_patches // num_frames // 4, 1),
        last_block=LastBlock(block, packed, rotary, num_frames, merge=4),
        raster=torch.arange(num_patches // 4),
    )
    found = output.signal("saliency")
    torch.testing.assert_close(found, golden["p_attn"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_a_trace_shows_every_layer_patch_by_patch(qwen, encoder, grid):
    frames, seen = clip(4, grid), []
    blocks = qwen.model.visual.blocks
    handles = [one.register_forward_hook(lambda m, a, out: seen.append(out)) for one in blocks]
    patches, thw = patches_of(frames, grid)
    with torch.no_grad():
        qwen.model.visual(patches, grid_thw=thw)
    for handle in handles:
        handle.remove()
    trace = encoder.trace(frames, [0, 1])
    assert trace.grid == (2 * grid[0], 2 * grid[1])
    assert trace.num_layers == encoder.num_layers == len(blocks)
    assert set(trace.hidden) == {0, 1}
    for layer, stock in enumerate(seen, start=1):
        tokens = stock.view(2, math.prod(grid), 2, 2, -1)
        raster = torch.empty_like(tokens)
        raster[:, windowed(grid)] = tokens
        rows = raster.view(2, *grid, 2, 2, -1).transpose(2, 3).flatten(1, 4)
        torch.testing.assert_close(trace.norms[:, layer], rows.norm(dim=-1), rtol=1e-4, atol=1e-4)
        if layer in trace.hidden:
            torch.testing.assert_close(trace.hidden[layer], rows, rtol=1e-4, atol=1e-4)
    attention = encoder.encode(frames, frozenset({"attention"})).attention
    of_tokens = trace.attention.view(2, grid[0], 2, grid[1], 2).sum(dim=(2, 4)).flatten(1)
    torch.testing.assert_close(of_tokens, attention)
