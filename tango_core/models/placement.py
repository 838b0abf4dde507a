"""Resolution of `"auto"` for devices and dtypes, and layers on several devices.

A language model that does not fit one GPU has its layers on several (`spread_layers`). Everything
else is on the first device, the home: token ids, positions, masks. Hidden states are moved if the
next layer is on another device; keys and values stay with their layer (`follow_weights`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tango_core.errors import InputError

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_AFTER_LAYERS = re.compile(r"(?:^|\.)(?:norm|lm_head)\.")


def resolve_device(device: str) -> torch.device:
    """The device that `"auto"` means in this process; of several, the first."""
    return resolve_devices(device)[0]


def resolve_devices(device: str) -> tuple[torch.device, ...]:
    """Resolve the devices of a model in this process.

    Args:
        device: `"auto"`, a device, or several with commas between them, which share the layers of
            a language model: `"cuda:0,cuda:1"`.

    Raises:
        ValueError: If this process does not see a requested GPU.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    devices = tuple(torch.device(name) for name in device.split(","))
    wanted = [one for one in devices if one.type == "cuda"]
    if wanted and not torch.cuda.is_available():
        raise InputError(
            "model.device is cuda, but this process sees no GPU; set model.device to cpu "
            "(where a pool reserves GPUs, auto is cuda)"
        )
    if len(wanted) > 1 and len(wanted) > torch.cuda.device_count():
        raise InputError(
            f"pools.answer.num_gpus is {len(wanted)}, but this process sees "
            f"{torch.cuda.device_count()} GPU(s); lower it"
        )
    return devices


def resolve_dtype(dtype: str, device: str) -> str:
    """The dtype that `"auto"` means: bfloat16 on a GPU, float32 on a CPU.

    The dtype is part of cache keys, so it depends only on the settings and not on the GPU of the
    calling process. A driver without a GPU plans for workers with one, so `device="cuda"` does not
    require a GPU here.
    """
    if dtype != "auto":
        return dtype
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "float32"
    return "bfloat16"


def raise_if_not_computed(dtype: str, device: str) -> None:
    """Raise for a GPU that does not support a dtype; CUDA would emulate it very slowly.

    Args:
        dtype: Resolved dtype of a model.
        device: As for `resolve_devices`; devices that this process does not see are ignored.

    Raises:
        ValueError: If the dtype is bfloat16 and a GPU does not support it.
    """
    if dtype != "bfloat16" or not torch.cuda.is_available():
        return
    if device != "auto" and not device.startswith("cuda"):
        return
    for one in resolve_devices(device):
        if torch.cuda.get_device_capability(one)[0] < 8:
            raise InputError(
                f"model.dtype is bfloat16 (what auto means on CUDA), but {one} is a "
                f"{torch.cuda.get_device_name(one)}, which does not compute in it; "
                "set model.dtype to float16 or float32"
            )


def spread_layers(
    sizes: Mapping[str, int], devices: Sequence[torch.device]
) -> dict[str, torch.device]:
    """Distribute the tensors of a language model to minimise the memory of the fullest device.

    Every device gets consecutive layers, because hidden states are moved between devices. Tensors
    before the layers (embedding, newline) are on the first device, those after them (norm, output
    projection) on the last.

    Args:
        sizes: Bytes of every tensor by name; names of layer i contain `layers.i.`.
        devices: One or more devices of equal size.

    Returns:
        Device of every tensor by name.

    Raises:
        ValueError: If there are more devices than layers.
    """
    if len(devices) == 1:
        return dict.fromkeys(sizes, devices[0])
    layers = {name: int(found[1]) for name in sizes if (found := _LAYER.search(name))}
    number = 1 + max(layers.values(), default=-1)
    if number < len(devices):
        raise InputError(
            f"pools.answer.num_gpus is {len(devices)}, but the language model has {number} layers; "
            "lower it"
        )
    loads = [0] * number
    for name, size in sizes.items():
        layers.setdefault(name, number - 1 if _AFTER_LAYERS.search(name) else 0)
        loads[layers[name]] += size
    shares = _shares(loads, len(devices))
    return {name: devices[shares[layer]] for name, layer in layers.items()}


def _shares(loads: Sequence[int], num_shares: int) -> list[int]:
    """Assign loads to consecutive non-empty shares so that the largest sum is minimal."""

    def assign(bound: int) -> list[int]:
        shares, total = [0], loads[0]
        for at, load in enumerate(loads[1:], 1):
            opens = total + load > bound or len(loads) - at < num_shares - shares[-1]
            total = load if opens else total + load
            shares.append(shares[-1] + opens)
        return shares

    bounds = range(sum(loads))
    return assign(
        bisect_left(bounds, True, lo=max(loads), key=lambda one: assign(one)[-1] < num_shares)
    )


def modules_of(half: object) -> list[nn.Module]:
    """The modules that an encoder, or a language model or its engine, holds directly.

    Args:
        half: From `load_encoder` or `load_language_model`, on any device, `meta` too.
    """
    engine = getattr(half, "engine", None)
    held = [*vars(half).values(), *(() if engine is None else vars(engine).values())]
    return [value for value in held if isinstance(value, nn.Module)]


def bytes_of(modules: Iterable[nn.Module]) -> int:
    """Bytes of all parameters and buffers, each counted once."""
    tensors = {
        id(value): value.nbytes
        for module in modules
        for value in (*module.parameters(), *module.buffers())
    }
    return sum(tensors.values())


def follow_weights(modules: Iterable[nn.Module], home: torch.device) -> list[torch.device]:
    """Let modules on other devices than the home move their arguments to their weights.

    Results stay on the module's device.

    Args:
        modules: Layers, norm and projection; some may have no weights.
        home: Device of the embedding.

    Returns:
        The other devices.
    """
    others = set()
    for module in modules:
        weight = next(module.parameters(), None)
        if weight is not None and weight.device != home:
            others.add(weight.device)
            module.register_forward_pre_hook(_moved_arguments, with_kwargs=True)
    return sorted(others, key=str)


def _moved_arguments(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return moved_to((args, kwargs), next(module.parameters()).device)


def moved_to(value: Any, device: torch.device) -> Any:
    """Move a tensor to a device, or all tensors in tuples and dicts."""
    if isinstance(value, tuple):
        return tuple(moved_to(part, device) for part in value)
    if isinstance(value, dict):
        return {name: moved_to(part, device) for name, part in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value
