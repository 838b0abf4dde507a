"""Attention on CUDA takes any length at once; linear layers and attention through oneDNN."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2FN

from tango_core.flops import positions_flops
from tango_core.models.kernels import (
    PackedLinear,
    attend,
    attend_in_blocks,
    attends,
    computes,
    pack_linears,
)
from tango_core.models.language.attention import attend_onwards, attend_whole
from tango_core.models.towers.patch_tower import PatchPlan


class OnDevice(torch.Tensor):
    """A tensor of the host that says it is on a GPU."""

    device = property(lambda self: torch.device("cuda:0"))


@pytest.fixture
def seen(monkeypatch):
    """Whether cuDNN may be chosen, call by call."""
    found, fused = [], functional.scaled_dot_product_attention

    def noted(*parts, **options):
        found.append(torch.backends.cuda.cudnn_sdp_enabled())
        return fused(*parts, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    return found


def parts(*shape):
    return [torch.randn(shape).as_subclass(OnDevice) for _ in range(3)]


CALLS = {
    "a prompt": lambda: attend_whole(*parts(2, 5, 4), 0.5),
    "words behind a clip": lambda: attend_onwards(*parts(2, 5, 4), 0.5, None),
    "windows of a tower": lambda: PatchPlan(2, ()).attend(parts(16, 2, 4), 0.5, windowed=False),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_plan_is_made_for_a_length(seen, call):
    call()
    assert seen
    assert not any(seen)
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_what_was_set_is_set_again_after_an_error(monkeypatch):
    def fails(*parts, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(functional, "scaled_dot_product_attention", fails)
    with pytest.raises(torch.OutOfMemoryError):
        attend(*parts(1, 2, 3, 4), scale=1.0)
    assert torch.backends.cuda.cudnn_sdp_enabled()


CPU = torch.device("cpu")
MOST_OFF = {torch.float32: 2e-6, torch.bfloat16: 6e-3}
DTYPES = pytest.mark.parametrize("dtype", MOST_OFF, ids=["float32", "bfloat16"])

NEEDS_ONEDNN = pytest.mark.skipif(
    not computes(torch.float32, CPU), reason="needs oneDNN and a CPU with AVX-512"
)


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative Frobenius distance."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@NEEDS_ONEDNN
@DTYPES
@pytest.mark.parametrize("shape", [(1, 640), (3, 70, 640)], ids=["a row", "a batch"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_pytorch_tanh", "silu"])
def test_packed_mlp_equals_the_stock_one(
    dtype: torch.dtype, shape: tuple[int, ...], activation: str
) -> None:
    torch.manual_seed(0)
    stock = nn.Module()
    stock.fc1, stock.fc2 = nn.Linear(640, 800), nn.Linear(800, 32, bias=False)
    stock.activation_fn = ACT2FN[activation]
    stock.to(dtype).requires_grad_(False)

    def run(rows: torch.Tensor) -> torch.Tensor:
        return stock.fc2(stock.activation_fn(stock.fc1(rows)))  # type: ignore[no-any-return]

    rows = torch.randn(shape).to(dtype)
    before = run(rows)
    small, cost = stock.fc2, positions_flops(stock, 7)
    pack_linears([stock], dtype, CPU)
    assert positions_flops(stock, 7) == cost
    assert isinstance(stock.fc1, PackedLinear)
    assert stock.fc2 is small
    assert isinstance(stock.activation_fn, nn.Identity) == activation.startswith("gelu")
    assert run(rows).dtype == dtype
    assert distance(run(rows), before) < MOST_OFF[dtype]


@NEEDS_ONEDNN
@DTYPES
@pytest.mark.parametrize(
    ("heads", "kv_heads", "rows", "is_causal"),
    [(3, 3, 600, False), (4, 2, 600, True), (2, 1, 1100, True)],
    ids=["tower", "grouped", "several blocks"],
)
def test_attention_in_blocks_equals_the_formula(
    dtype: torch.dtype, heads: int, kv_heads: int, rows: int, is_causal: bool
) -> None:
    torch.manual_seed(0)
    # Laid out as projections leave them: the heads of a row beside each other.
    queries, keys, values = (
        torch.randn(2, rows, number, 24).to(dtype).transpose(1, 2)
        for number in (heads, kv_heads, kv_heads)
    )
    kept = queries.clone()
    assert attends(queries, keys, None, is_causal)
    exact = functional.scaled_dot_product_attention(
        *(part.double() for part in (queries, keys, values)),
        is_causal=is_causal,
        scale=0.3,
        enable_gqa=True,
    )
    found = attend_in_blocks(queries, keys, values, 0.3, is_causal)
    assert distance(found, exact) < MOST_OFF[dtype]
    assert torch.equal(queries, kept)


@NEEDS_ONEDNN
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=["float16", "float64"])
def test_stock_layers_stay_where_onednn_does_not_compute(dtype: torch.dtype) -> None:
    stock = nn.Linear(640, 640, dtype=dtype)
    holder = nn.Sequential(stock)
    pack_linears([holder], dtype, CPU)
    assert holder[0] is stock
