"""Tokens, signals and traces of Qwen's towers against the stock ones and plain computations."""

import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import qwen3_checkpoints
import qwen_checkpoints
import qwen_frames
import torch
from golden_files import GOLDEN_DIR
from small_families import SMALL_FAMILIES
from torch import nn

from tango_core.models import load_encoder
from tango_core.models.towers.patch_tower import PatchPlan, PatchTowerOutput

SIGNALS = frozenset({"saliency", "attention", "keys", "frame_embeddings"})
NAMES = ("qwen2.5-vl-7b", "qwen3-vl-8b")
SIZES = [(1, 1), (4, 4), (3, 10), (5, 9)]  # tokens; windows of Qwen2.5-VL are 4 x 4
assert qwen_checkpoints.MULTIPLE == qwen3_checkpoints.MULTIPLE


class Pair:
    """Our encoder of a family, and the stock tower with the same weights."""

    def __init__(self, name, folder):
        self.family = SMALL_FAMILIES[name]
        stock = self.family.build()
        self.tower = stock.model.visual
        self.encoder = load_encoder(name, str(self.family.save(stock, folder)))

    @torch.no_grad()
    def stock(self, frames, grid):
        """Output of the stock tower."""
        values = torch.tensor(frames.pixels).float() / 255
        scaled = (values - torch.tensor(self.family.mean)) / torch.tensor(self.family.std)
        patches, thw = qwen_frames.patches_of(scaled, grid)
        return self.tower(patches, grid_thw=thw)

    def order(self, grid):
        """Raster positions of a frame's tokens in the order of the tower."""
        if self.family.extra:
            return list(range(math.prod(grid)))
        return [
            h * grid[1] + w
            for top, left in product(range(0, grid[0], 4), range(0, grid[1], 4))
            for h in range(top, min(top + 4, grid[0]))
            for w in range(left, min(left + 4, grid[1]))
        ]

    def raster(self, values, grid):
        """(T, L, 4, ...) values in raster order, from those of the patches in the tower's."""
        tokens = values.reshape(-1, math.prod(grid), 4, *values.shape[1:])
        found = torch.empty_like(tokens)
        found[:, self.order(grid)] = tokens
        return found

    def last_block(self, frames, grid):
        """Queries, keys and unrotated keys of the last block: (T, L, 4, heads, d), raster order."""
        attention, seen = self.tower.blocks[-1].attn, {}

        def look(module, args, kwargs):
            seen["hidden"], seen["rotary"] = args[0], kwargs["position_embeddings"]

        handle = attention.register_forward_pre_hook(look, with_kwargs=True)
        self.stock(frames, grid)
        handle.remove()
        count = len(seen["hidden"])
        with torch.no_grad():
            packed = attention.qkv(seen["hidden"]).view(count, 3, attention.num_heads, -1)

        def rotate(x):
            first, second = x.chunk(2, dim=-1)
            cosine, sine = (part[:, None] for part in seen["rotary"])
            return x * cosine + torch.cat([-second, first], dim=-1) * sine

        parts = rotate(packed[:, 0]), rotate(packed[:, 1]), packed[:, 1]
        return [self.raster(part, grid) for part in parts]


@pytest.fixture(scope="module", params=NAMES)
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("num_frames", [1, 2, 5])
@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_tokens_and_companions_are_the_stock_ones(pair, num_frames, grid):
    frames = qwen_frames.clip(num_frames, grid)
    features, stock = pair.encoder.encode(frames), pair.stock(frames, grid)
    count, extra, width = (num_frames + 1) // 2, pair.family.extra, pair.family.width
    assert features.grid == grid
    assert features.tokens.shape == (count, math.prod(grid), width)
    expected = stock.pooler_output
    scale = float(expected.abs().max())
    close = {"rtol": 1e-5, "atol": 1e-5 * scale}
    torch.testing.assert_close(features.tokens.flatten(0, 1), expected, **close)
    if not extra:
        assert features.companions is None
        return
    assert features.companions.shape == (count, math.prod(grid), extra, width)
    for at, deep in enumerate(stock.deepstack_features):
        found = features.companions.flatten(0, 1)[:, at]
        torch.testing.assert_close(found, deep, rtol=1e-5, atol=1e-5)
        assert float((found - expected).abs().max()) > 0.1


@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_signals_are_those_of_the_last_block(pair, grid):
    """Saliency by the mean query; attention by all patches of the frame; keys without places."""
    frames = qwen_frames.clip(4, grid)
    queries, keys, plain = pair.last_block(frames, grid)
    features = pair.encoder.encode(frames, SIGNALS)
    width = math.sqrt(keys.shape[-1])
    query, key = queries.mean(dim=(1, 2)), keys.mean(dim=2)
    expected = (torch.einsum("thd,tlhd->thl", query, key) / width).softmax(-1).mean(dim=1)
    torch.testing.assert_close(features.saliency, expected, rtol=1e-4, atol=1e-6)
    logits = torch.einsum("tphd,tqhd->thpq", queries.flatten(1, 2), keys.flatten(1, 2)) / width
    received = logits.softmax(-1).mean(dim=(1, 2)).view(2, -1, 4).sum(dim=-1)
    torch.testing.assert_close(features.attention, received, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(features.keys, plain.mean(dim=(2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features.frame_embeddings, features.tokens.mean(dim=1))


def test_saliency_of_the_releases_queries_and_keys():
    """Golden vectors are in window order: the identity as raster order leaves them there."""
    with np.load(GOLDEN_DIR / "unit_saliency_qwen25.npz") as data:
        golden = {key: torch.from_numpy(data[key]) for key in data.files}
    num_patches, heads, _ = golden["q"].shape
    num_frames = int(golden["grid_thw"][0])
    packed = torch.stack([golden["q"], golden["k"], golden["k"]], dim=1).flatten(1)
    attention = SimpleNamespace(qkv=nn.Identity(), num_heads=heads)
    block = SimpleNamespace(norm1=nn.Identity(), attn=attention)
    rotary = (golden["cos"], golden["sin"])
    output = PatchTowerOutput(
        tokens=torch.empty(num_frames, num_patches // num_frames // 4, 1),
        block=block,
        states=packed,
        plan=PatchPlan(num_frames, rotary),
        merge=4,
    )
    found = output.signal("saliency")
    torch.testing.assert_close(found, golden["p_attn"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_a_trace_shows_every_layer_patch_by_patch(pair, grid):
    frames, seen, blocks = qwen_frames.clip(5, grid), [], pair.tower.blocks
    handles = [one.register_forward_hook(lambda m, a, out: seen.append(out)) for one in blocks]
    pair.stock(frames, grid)
    for handle in handles:
        handle.remove()
    trace = pair.encoder.trace(frames, [0, 1])
    assert trace.grid == (2 * grid[0], 2 * grid[1])
    assert trace.num_layers == pair.encoder.num_layers == len(blocks)
    assert set(trace.hidden) == {0, 1}
    for layer, stock in enumerate(seen, start=1):
        rows = pair.raster(stock, grid).view(3, *grid, 2, 2, -1).transpose(2, 3).flatten(1, 4)
        torch.testing.assert_close(trace.norms[:, layer], rows.norm(dim=-1), rtol=1e-4, atol=1e-4)
        if layer in trace.hidden:
            torch.testing.assert_close(trace.hidden[layer], rows, rtol=1e-4, atol=1e-4)
    attention = pair.encoder.encode(frames, frozenset({"attention"})).attention
    squares = trace.attention.view(3, grid[0], 2, grid[1], 2)
    torch.testing.assert_close(squares.sum(dim=(2, 4)).flatten(1), attention)
