"""Tokens, DeepStack rows and signals of the vision half against the stock tower."""

import json
import math
from itertools import product

import pytest
import torch
from qwen3_checkpoints import EXTRA, NAME, WIDTH, frames_of, save_qwen3

from tango_core.models import describe_model
from tango_core.models.towers.patches import pair_frames

SIGNALS = frozenset({"saliency", "attention", "keys", "frame_embeddings"})
SIZES = [(1, 1), (4, 4), (3, 10), (5, 2)]


def stock_features(qwen3, encoder, frames, grid):
    """Tokens and DeepStack rows of the stock tower: (T * L, D), and E of them."""
    patches = encoder._patches(torch.tensor(pair_frames(frames.pixels, 2)))
    thw = torch.tensor([[(len(frames.pixels) + 1) // 2, 2 * grid[0], 2 * grid[1]]])
    with torch.no_grad():
        found = qwen3.model.visual(patches, grid_thw=thw)
    return found.pooler_output, found.deepstack_features


@pytest.mark.parametrize("num_frames", [1, 2, 5])
@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_tokens_and_companions_are_the_stock_ones(qwen3, encoder, num_frames, grid):
    frames = frames_of(num_frames, grid)
    features = encoder.encode(frames)
    tokens, deep = stock_features(qwen3, encoder, frames, grid)
    count = (num_frames + 1) // 2
    assert features.grid == grid
    assert features.tokens.shape == (count, math.prod(grid), WIDTH)
    assert features.companions.shape == (count, math.prod(grid), EXTRA, WIDTH)
    assert not features.anchored
    torch.testing.assert_close(features.tokens.flatten(0, 1), tokens, rtol=1e-5, atol=1e-5)
    for at, expected in enumerate(deep):
        found = features.companions.flatten(0, 1)[:, at]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert float((found - tokens).abs().max()) > 0.1


def test_timestamps_are_the_middles_of_the_pairs(encoder):
    assert encoder.encode(frames_of(5, (1, 2))).timestamps.tolist() == [0.25, 1.25, 2.0]


def last_block(qwen3, encoder, frames, grid):
    """Queries, keys and unrotated keys of the last block: (T, L, 4, heads, d)."""
    attention, seen = qwen3.model.visual.blocks[-1].attn, {}

    def look(module, args, kwargs):
        seen["hidden"], seen["rotary"] = args[0], kwargs["position_embeddings"]

    handle = attention.register_forward_pre_hook(look, with_kwargs=True)
    stock_features(qwen3, encoder, frames, grid)
    handle.remove()
    with torch.no_grad():
        packed = attention.qkv(seen["hidden"]).view(len(seen["hidden"]), 3, attention.num_heads, -1)

    def rotate(x):
        first, second = x.chunk(2, dim=-1)
        cosine, sine = (part[:, None] for part in seen["rotary"])
        return x * cosine + torch.cat([-second, first], dim=-1) * sine

    parts = rotate(packed[:, 0]), rotate(packed[:, 1]), packed[:, 1]
    return [part.reshape(-1, math.prod(grid), 4, *part.shape[1:]) for part in parts]


@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_signals_are_those_of_the_last_block(qwen3, encoder, grid):
    frames = frames_of(4, grid)
    queries, keys, plain = last_block(qwen3, encoder, frames, grid)
    features = encoder.encode(frames, SIGNALS)
    width = math.sqrt(keys.shape[-1])
    query, key = queries.mean(dim=(1, 2)), keys.mean(dim=2)
    expected = (torch.einsum("thd,tlhd->thl", query, key) / width).softmax(-1).mean(dim=1)
    torch.testing.assert_close(features.saliency, expected, rtol=1e-4, atol=1e-6)
    logits = torch.einsum("tphd,tqhd->thpq", queries.flatten(1, 2), keys.flatten(1, 2)) / width
    received = logits.softmax(-1).mean(dim=(1, 2)).view(2, -1, 4).sum(dim=-1)
    torch.testing.assert_close(features.attention, received, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(features.keys, plain.mean(dim=(2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features.frame_embeddings, features.tokens.mean(dim=1))


class TestDescription:
    def test_only_what_changes_tokens_is_in_the_cache_s_identity(self, qwen3_checkpoint):
        plain = describe_model(NAME, qwen3_checkpoint)
        for same in ({"empty_blocks": "drop"}, {"outer_marks": True}, {"system_turn": True}):
            assert describe_model(NAME, qwen3_checkpoint, **same).identity() == plain.identity()
        for other in ({"companions": "anchor"}, {"max_pixels": 640}, {"min_pixels": 640}):
            assert describe_model(NAME, qwen3_checkpoint, **other).identity() != plain.identity()

    def test_other_architectures_are_refused(self, qwen3, tmp_path):
        path = save_qwen3(qwen3, tmp_path)
        text = (path / "config.json").read_text()
        (path / "config.json").write_text(text.replace('"qwen3_vl"', '"qwen3_vl_moe"'))
        with pytest.raises(ValueError, match="a mixture of experts, which is not supported"):
            describe_model(NAME, str(path))
        blocks = {**json.loads(text)}
        blocks["vision_config"]["deepstack_visual_indexes"] = [0, 1, 5]
        (path / "config.json").write_text(json.dumps(blocks))
        with pytest.raises(ValueError, match=r"different blocks from 0 to 4, got \[0, 1, 5\]"):
            describe_model(NAME, str(path))
        (path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="holds a 'qwen3_vl' model, not 'qwen2_5_vl'"):
            describe_model("qwen2.5-vl-7b", str(path))


@pytest.mark.parametrize("num_frames", [2, 5])
@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_a_trace_shows_every_layer_patch_by_patch(qwen3, encoder, num_frames, grid):
    frames, seen = frames_of(num_frames, grid), []
    blocks = qwen3.model.visual.blocks
    handles = [
        blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0])),
        *(one.register_forward_hook(lambda m, a, out: seen.append(out)) for one in blocks),
    ]
    stock_features(qwen3, encoder, frames, grid)
    for handle in handles:
        handle.remove()
    trace = encoder.trace(frames, [0, 3])
    assert trace.grid == (2 * grid[0], 2 * grid[1])
    assert trace.num_layers == encoder.num_layers == len(blocks)
    assert set(trace.hidden) == {0, 3}
    assert len(seen) == len(blocks) + 1
    count = (num_frames + 1) // 2
    for layer, stock in enumerate(seen):
        cut = stock.view(count, *grid, 2, 2, -1)
        rows = torch.stack(
            [cut[:, y // 2, x // 2, y % 2, x % 2] for y, x in product(*map(range, trace.grid))],
            dim=1,
        )
        torch.testing.assert_close(trace.norms[:, layer], rows.norm(dim=-1), rtol=1e-4, atol=1e-4)
        if layer in trace.hidden:
            torch.testing.assert_close(trace.hidden[layer], rows, rtol=1e-4, atol=1e-4)
    attention = encoder.encode(frames, frozenset({"attention"})).attention
    squares = trace.attention.view(count, grid[0], 2, grid[1], 2)
    torch.testing.assert_close(squares.sum(dim=(2, 4)).flatten(1), attention)
