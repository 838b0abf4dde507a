"""Linear layers and attention through oneDNN equal the stock ones up to rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2FN

from tango_core.flops import positions_flops
from tango_core.models.onednn import PackedLinear, attend_in_blocks, attends, computes, pack_linears

CPU = torch.device("cpu")
MOST_OFF = {torch.float32: 2e-6, torch.bfloat16: 6e-3}
DTYPES = pytest.mark.parametrize("dtype", MOST_OFF, ids=["float32", "bfloat16"])

pytestmark = pytest.mark.skipif(
    not computes(torch.float32, CPU), reason="needs oneDNN and a CPU with AVX-512"
)


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative Frobenius distance."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=["float16", "float64"])
def test_stock_layers_stay_where_onednn_does_not_compute(dtype: torch.dtype) -> None:
    stock = nn.Linear(640, 640, dtype=dtype)
    holder = nn.Sequential(stock)
    pack_linears([holder], dtype, CPU)
    assert holder[0] is stock
