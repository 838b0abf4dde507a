"""Attention and linear layers on CUDA and on CPUs.

PyTorch selects the attention kernel. Since 2.9 it prefers cuDNN on Hopper and data-center Blackwell
GPUs if it is new enough (9.15.1, as in the wheels for CUDA 13), and cuDNN creates a plan for every
new shape. Users report about half a second of host time per plan (not measured here), and nearly
every prompt has a different length. The kernels that come
next (flash, or the memory-efficient one where there is a mask) need no plans. Towers whose frames
all have one size make a plan or two per job and are left to PyTorch.

On CPUs with AVX-512, linear layers and attention go through oneDNN.
PyTorch gives a linear layer in float32 to MKL, which uses half of the width of other vendors'
processors, and reorders a weight in bfloat16 at every call. oneDNN with a weight that is stored in
its own order needs neither, and a GELU behind the layer costs nothing more. PyTorch's attention
kernel for CPUs is slow in bfloat16; here logits are float32 products of one head at a time, which
fit into the caches. Results differ from the stock ones by rounding, like those of another batch
size or processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tango_core.models.base import ModelSpec
from tango_core.ops.precision import ProcessSetting

# Whether cuDNN may compute attention, turned off where it is held.
_cudnn: ProcessSetting[bool] = ProcessSetting(
    lambda: torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp,
    lambda _: False,
)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention`; on CUDA with kernels that need no plan, on CPUs see `onednn`.

    Args:
        queries: (B, heads, n, d).
        keys: (B, kv_heads, S, d).
        values: (B, kv_heads, S, d).
        scale: Factor of the logits.
        mask: (B, heads, n, S) bool or of a shape that expands to it, `True` where attention is
            allowed; every row needs at least one.
        is_causal: Instead of a mask, for n = S.
        enable_gqa: Whether there are fewer heads of keys than of queries.

    Returns:
        (B, heads, n, d).
    """
    if attends(queries, keys, mask, is_causal):
        return attend_in_blocks(queries, keys, values, scale, is_causal)
    with _cudnn.held() if queries.device.type == "cuda" else nullcontext():
        return functional.scaled_dot_product_attention(
            queries, keys, values, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )


# Smaller weights gain nothing.
_LEAST_NUMBERS = 2**18
# Logits of one head and some queries at once: 4 MB.
_LOGITS_AT_ONCE = 2**20
# Rows of queries from which attention is computed here.
_LEAST_ROWS = 512

# First layer and activation of the stock MLPs and projectors, by attribute.
_GELU_PAIRS = (("fc1", "activation_fn"), ("linear_fc1", "act_fn"), ("linear_1", "act"))
_APPROXIMATION = {"GELUActivation": "none", "GELUTanh": "tanh", "PytorchGELUTanh": "tanh"}


def computes(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether linear layers and attention of this type go through oneDNN on this device."""
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and dtype in (torch.float32, torch.bfloat16)
    )


def advice(spec: ModelSpec) -> str:
    """One line for users whose model would be faster in bfloat16 on this CPU; "" for others."""
    on_cpu = spec.device == "cpu" or (spec.device == "auto" and not torch.cuda.is_available())
    has_units = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    if spec.dtype != "float32" or spec.llm.hidden_size < 512 or not (on_cpu and has_units):
        return ""
    return (
        "this CPU computes in bfloat16: with model.dtype bfloat16 (and caches of its own) this "
        "model takes about half of the time"
    )


class PackedLinear(nn.Module):
    """A linear layer without its stock weight, with the same weight in oneDNN's order.

    Args:
        linear: Layer to replace.
        gelu: Approximation of a GELU behind it; `None` for no GELU.
    """

    packed: Tensor

    def __init__(self, linear: nn.Linear, gelu: str | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.register_buffer("packed", torch.ops.mkldnn._reorder_linear_weight(linear.weight))
        self._after: tuple[str, list[Any], str]
        self._after = ("none", [], "") if gelu is None else ("gelu", [], gelu)

    def forward(self, rows: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self.packed, self.bias, *self._after
        )
        return result


def pack_linears(modules: Sequence[nn.Module], dtype: torch.dtype, device: torch.device) -> None:
    """Replace large linear layers inside modules, and a GELU that follows them.

    Other parameters beside them are copied: they would keep a mapped file of weights in memory.

    Args:
        modules: Untouched where oneDNN is not used.
        dtype: Of the weights.
        device: Of the weights.
    """
    if not computes(dtype, device):
        return
    activations, packed = dict(_GELU_PAIRS), False
    # Without the layers themselves, so that each is freed as soon as it is replaced.
    parents = [part for module in modules for part in module.modules() if list(part.children())]
    for parent in parents:
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.numel() >= _LEAST_NUMBERS:
                after = activations.get(name, "")
                gelu = _APPROXIMATION.get(type(getattr(parent, after, None)).__name__)
                setattr(parent, name, PackedLinear(child, gelu))
                packed = True
                if gelu is not None:
                    setattr(parent, after, nn.Identity())
    for parameter in [one for module in modules if packed for one in module.parameters()]:
        parameter.data = parameter.data.clone()


def attends(queries: Tensor, keys: Tensor, mask: Tensor | None, is_causal: bool) -> bool:
    """Whether `attend_in_blocks` is the faster way."""
    rows = queries.shape[2]
    return (
        mask is None
        and rows >= _LEAST_ROWS
        and (not is_causal or rows == keys.shape[2])
        and not queries.requires_grad
        and computes(queries.dtype, queries.device)
    )


def attend_in_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, is_causal: bool
) -> Tensor:
    """Softmax attention, a head and a block of queries at a time; logits are float32.

    Args:
        queries: (B, heads, n, d).
        keys: (B, kv_heads, S, d).
        values: (B, kv_heads, S, d).
        scale: Factor of the logits.
        is_causal: Whether query i sees the first i + 1 keys; n = S then.

    Returns:
        (B, heads, n, d), a view of (B, n, heads, d).
    """
    batch, heads, rows, width = queries.shape
    group, num_keys = heads // keys.shape[1], keys.shape[2]
    step = max(64, _LOGITS_AT_ONCE // num_keys // 64 * 64)
    hidden = torch.ones(min(step, rows), min(step, rows), dtype=torch.bool).triu(1)
    product: Any = torch.ops.mkldnn._linear_pointwise
    result = queries.new_empty(batch, rows, heads, width)
    for index in range(batch * heads):
        clip, head = divmod(index, heads)
        if head % group == 0:
            key = keys[clip, head // group].float().contiguous()
            value = values[clip, head // group].mT.contiguous()
        query = (queries[clip, head].float() * scale).contiguous()
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            seen = stop if is_causal else num_keys
            logits = product(query[start:stop], key[:seen], None, "none", [], "")
            if is_causal:
                count = stop - start
                logits[:, start:].masked_fill_(hidden[:count, :count], -torch.inf)
            shares = logits.softmax(dim=-1).to(values.dtype)
            result[clip, start:stop, head] = product(
                shares, value[:, :seen].contiguous(), None, "none", [], ""
            )
    return result.transpose(1, 2)


IMPLEMENTATION = "tango_onednn"
"""Name under which this attention is registered in transformers, for towers."""


def _attention(module: nn.Module, *parts: Any, scaling: float, **options: Any) -> Any:
    """The attention function registered in transformers, for queries, keys, values and a mask."""
    query, key, value, mask = parts
    if attends(query, key, mask, is_causal=False):
        return attend_in_blocks(query, key, value, scaling, is_causal=False).transpose(1, 2), None
    attend: Any = sdpa_attention_forward
    return attend(module, *parts, scaling=scaling, **options)


AttentionInterface.register(IMPLEMENTATION, _attention)
