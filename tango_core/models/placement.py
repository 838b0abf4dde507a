"""Resolution of `"auto"` for devices and dtypes, and layers on several devices.

A language model that does not fit one GPU has its layers on several (`spread_layers`). Everything
else is on the first device, the home: token ids, positions, masks, logits. Hidden states are moved
if the next layer is on another device; keys and values stay with their layer (`Spread`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    layers = [_LAYER.search(name) for name in sizes]
    number = 1 + max((int(found.group(1)) for found in layers if found), default=-1)
    if number < len(devices):
        raise InputError(
            f"pools.answer.num_gpus is {len(devices)}, but the language model has {number} layers; "
            "lower it"
        )
    places = {}
    for name, found in zip(sizes, layers, strict=True):
        after = number - 1 if _AFTER_LAYERS.search(name) else 0
        places[name] = int(found.group(1)) if found else after
    loads = [0] * number
    for name, size in sizes.items():
        loads[places[name]] += size
    of_layer = _shares(loads, len(devices))
    return {name: devices[of_layer[place]] for name, place in places.items()}


def _shares(loads: Sequence[int], num_shares: int) -> list[int]:
    """Assign loads to consecutive non-empty shares so that the largest sum is minimal."""
    number = len(loads)
    before = [0]
    for load in loads:
        before.append(before[-1] + load)
    # best[k][i]: (largest sum, start of the last share) for the first i loads in k + 1 shares.
    best: list[list[tuple[float, int]]] = [[(float(total), 0) for total in before]]
    for count in range(1, num_shares):
        best.append(
            [
                min(
                    (
                        (max(best[-1][cut][0], float(before[end] - before[cut])), cut)
                        for cut in range(count, end)
                    ),
                    default=(float("inf"), 0),
                )
                for end in range(number + 1)
            ]
        )
    shares, end = [0] * number, number
    for count in range(num_shares - 1, -1, -1):
        start = best[count][end][1]
        shares[start:end] = [count] * (end - start)
        end = start
    return shares


def modules_of(half: object) -> list[nn.Module]:
    """The modules that an encoder, or a language model or its engine, holds directly.

    Args:
        half: From `load_encoder` or `load_language_model`, on any device, `meta` too.
    """
    holders = [half, *([engine] if (engine := getattr(half, "engine", None)) is not None else [])]
    values = [value for holder in holders for value in vars(holder).values()]
    return [value for value in values if isinstance(value, nn.Module)]


def bytes_of(modules: Iterable[nn.Module]) -> int:
    """Bytes of all parameters and buffers, each counted once."""
    tensors = {
        id(value): value.nbytes
        for module in modules
        for value in (*module.parameters(), *module.buffers())
    }
    return sum(tensors.values())


def bytes_by_name(modules: Iterable[nn.Module]) -> dict[str, int]:
    """Bytes of every tensor by name; a shared tensor has only one of its names."""
    found: dict[int, tuple[str, Tensor]] = {}
    for module in modules:
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            found.setdefault(id(value), (name, value))
    return {name: value.nbytes for name, value in found.values()}


def device_of(module: Any, default: torch.device | None = None) -> torch.device:
    """Device of a module's weights; `default` if it has none."""
    parameter: Tensor | None = next(iter(module.parameters()), None)
    found = default if parameter is None else parameter.device
    assert found is not None
    return found


class Elsewhere:
    """Wraps a module on another device than the home; behaves like the module otherwise.

    Args:
        module: A layer, a norm or a projection.
        device: Device of its weights, to which arguments are moved.
        back: Whether the result is moved to the input's device.
    """

    def __init__(self, module: nn.Module, device: torch.device, *, back: bool = False) -> None:
        self._module = module
        self._device = device
        self._back = back

    def __call__(self, hidden: Tensor, **given: Any) -> Any:
        """Call the module on its device."""
        here = {name: _moved_to(value, self._device) for name, value in given.items()}
        result = self._module(hidden.to(self._device), **here)
        return result.to(hidden.device) if self._back else result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def calling(self, make: Callable[[nn.Module], Any]) -> Elsewhere:
        """Wrap `make(module)` in the same way."""
        return Elsewhere(make(self._module), self._device, back=self._back)


class Spread:
    """The modules of a language model on one or several devices.

    Args:
        layers: Layers in order.
        norm: Final norm.
        lm_head: Output projection.
        home: Device of the embedding.

    Attributes:
        layers: The layers; those on other devices move their arguments.
        norm: The norm; its result is on the input's device.
        lm_head: The projection; its result is on the input's device.
        devices: All devices, the home first.
    """

    def __init__(self, layers: Sequence[Any], norm: Any, lm_head: Any, home: torch.device) -> None:
        self.home = home
        self.layers = list(layers)
        self.norm, self.lm_head = norm, lm_head
        modules = (*layers, norm, lm_head)
        places = [device_of(module, home) for module in modules]
        self.devices = (home, *sorted(set(places) - {home}, key=str))
        if not self.is_one:
            *self.layers, self.norm, self.lm_head = (
                Elsewhere(module, device, back=module in (norm, lm_head))
                for module, device in zip(modules, places, strict=True)
            )

    @property
    def is_one(self) -> bool:
        """Whether all modules are on one device."""
        return len(self.devices) == 1

    def layers_as(self, make: Callable[[nn.Module], Any]) -> list[Any]:
        """Apply `make` to the stock layers, keeping their devices."""
        return [
            layer.calling(make) if isinstance(layer, Elsewhere) else make(layer)
            for layer in self.layers
        ]

    def together(self, hidden: Tensor, *others: Any) -> tuple[Any, ...]:
        """Move tensors or pairs of tensors to the hidden states' device; `None` is unchanged."""
        if self.is_one:
            return others
        return tuple(_moved_to(value, hidden.device) for value in others)

    def synchronize(self) -> None:
        """Wait until all devices have finished their work."""
        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)


def _moved_to(value: Any, device: torch.device) -> Any:
    """Move a tensor or a tuple of tensors to a device."""
    if isinstance(value, tuple):
        return tuple(_moved_to(part, device) for part in value)
    return value.to(device) if isinstance(value, Tensor) else value
