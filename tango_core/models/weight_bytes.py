"""How much memory the weights of a half of a model take, also where none has been read."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn


def modules_of(half: object) -> list[nn.Module]:
    """The modules that an encoder, or a language model or its engine, holds directly.

    Args:
        half: From `load_encoder` or `load_language_model`, on any device, `meta` too.
    """
    holders = [half, *([engine] if (engine := getattr(half, "engine", None)) is not None else [])]
    values = [value for holder in holders for value in vars(holder).values()]
    return [value for value in values if isinstance(value, nn.Module)]


def bytes_of(modules: Iterable[nn.Module]) -> int:
    """Parameters and buffers, each once."""
    return sum(value.nbytes for value in _tensors(modules).values())


def bytes_by_name(modules: Iterable[nn.Module]) -> dict[str, int]:
    """Name of a tensor -> bytes; a tensor with two names is under one of them."""
    found: dict[int, tuple[str, Tensor]] = {}
    for module in modules:
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            found.setdefault(id(value), (name, value))
    return {name: value.nbytes for name, value in found.values()}


def _tensors(modules: Iterable[nn.Module]) -> dict[int, Tensor]:
    """All parameters and buffers by identity."""
    return {
        id(value): value
        for module in modules
        for value in (*module.parameters(), *module.buffers())
    }
