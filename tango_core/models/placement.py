"""Which devices and precision `"auto"` means, and layers on several devices.

A language model that no single GPU holds has its layers on several (`spread_layers`). Around the
layers everything is on the first device, the home: token ids, positions, masks, logits. Hidden
states move where the next layer is elsewhere; keys and values stay with their layer (`Spread`).
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
    """The devices of this process that a model was given.

    Args:
        device: `"auto"`, a device, or several with commas between them, which share the layers of
            a language model: `"cuda:0,cuda:1"`.

    Raises:
        ValueError: If a GPU is asked for that this process does not see.
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

    It names caches, so it follows from the settings: not from which GPU the process has that asks.
    A driver without a GPU plans for workers that have one, so `device="cuda"` needs none here.
    """
    if dtype != "auto":
        return dtype
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "float32"
    return "bfloat16"


def raise_if_not_computed(dtype: str, device: str) -> None:
    """Refuse a GPU that does not compute in a dtype; CUDA alone would imitate it, very slowly.

    Args:
        dtype: Of a model, resolved.
        device: As for `resolve_devices`; one that this process does not see is passed over.

    Raises:
        ValueError: If the dtype is bfloat16 and a GPU is older than that.
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
    """Share the tensors of a language model out, so that the fullest device holds the least.

    Every device gets layers that follow each other, because hidden states are moved where the next
    layer is on another device. What comes before the layers (embedding, newline) is on the first
    device and what comes after them (norm, output projection) on the last.

    Args:
        sizes: Name of a tensor -> bytes; those of layer i have `layers.i.` in their names.
        devices: One or more, alike.

    Returns:
        Name -> device.

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
    """Share of every load, in order, each share with at least one; the largest sum is smallest."""
    number = len(loads)
    before = [0]
    for load in loads:
        before.append(before[-1] + load)
    # best[k][i]: the largest share and the border before it, of the first i loads in k + 1 shares.
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


def device_of(module: Any, default: torch.device | None = None) -> torch.device:
    """Where the weights of a module are; `default` if it has none."""
    parameter: Tensor | None = next(iter(module.parameters()), None)
    found = default if parameter is None else parameter.device
    assert found is not None
    return found


class Elsewhere:
    """A module on a device of its own; in all else it is the module itself.

    What it is called with is moved to it. Keyword arguments are the same objects for many layers
    of a pass (the rotary embedding, a mask), so each is moved once.

    Args:
        module: A layer, a norm or a projection.
        device: Where its weights are.
        moved: Of the pass and the device: name -> (what was given, the same on the device).
        back: Whether the result is moved to where the input was.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        moved: dict[str, tuple[Any, Any]],
        *,
        back: bool = False,
    ) -> None:
        self._module = module
        self._device = device
        self._moved = moved
        self._back = back

    def __call__(self, hidden: Tensor, **given: Any) -> Any:
        """The module's own call."""
        here = {name: self._here(name, value) for name, value in given.items()}
        result = self._module(hidden.to(self._device), **here)
        return result.to(hidden.device) if self._back else result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def calling(self, make: Callable[[nn.Module], Any]) -> Elsewhere:
        """The same, of what `make` makes of the module."""
        return Elsewhere(make(self._module), self._device, self._moved, back=self._back)

    def _here(self, name: str, value: Any) -> Any:
        """A tensor, or a pair of them, on the device; anything else as it is."""
        if not isinstance(value, (Tensor, tuple)):
            return value
        given, moved = self._moved.get(name, (None, None))
        if given is not value:
            if isinstance(value, Tensor):
                moved = value.to(self._device)
            else:
                moved = tuple(part.to(self._device) for part in value)
            self._moved[name] = (value, moved)
        return moved


class Spread:
    """The modules of a language model, wherever they are.

    Args:
        layers: In their order.
        norm: After them.
        lm_head: After the norm.
        home: Device of the embedding.

    Attributes:
        layers: As given; those away from the home move what they are called with.
        norm: The same; its result is where its input was.
        lm_head: As `norm`.
        devices: All of them, the home first.
    """

    def __init__(self, layers: Sequence[Any], norm: Any, lm_head: Any, home: torch.device) -> None:
        self.home = home
        self.layers = list(layers)
        self.norm, self.lm_head = norm, lm_head
        modules = (*layers, norm, lm_head)
        places = [device_of(module, home) for module in modules]
        self.devices = (home, *sorted(set(places) - {home}, key=str))
        self._moved: dict[torch.device, dict[str, tuple[Any, Any]]] = {}
        if self.is_one:
            return
        self._moved = {device: {} for device in self.devices}
        *self.layers, self.norm, self.lm_head = (
            Elsewhere(module, device, self._moved[device], back=module in (norm, lm_head))
            for module, device in zip(modules, places, strict=True)
        )

    @property
    def is_one(self) -> bool:
        """Whether all is on one device."""
        return len(self.devices) == 1

    def layers_as(self, make: Callable[[nn.Module], Any]) -> list[Any]:
        """The layers as `make` makes them of the stock ones, where those are."""
        return [
            layer.calling(make) if isinstance(layer, Elsewhere) else make(layer)
            for layer in self.layers
        ]

    def begin(self) -> None:
        """A pass begins: what was moved in the last one may have been written over since."""
        for moved in self._moved.values():
            moved.clear()

    def together(self, hidden: Tensor, *others: Any) -> tuple[Any, ...]:
        """Tensors, or pairs of them, where the hidden states are; `None` stays."""
        if self.is_one:
            return others
        return tuple(_moved_to(value, hidden.device) for value in others)

    def synchronize(self) -> None:
        """Wait until every device has done what it was asked to do."""
        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)


def _moved_to(value: Any, device: torch.device) -> Any:
    """A tensor or a tuple of tensors on a device."""
    if isinstance(value, tuple):
        return tuple(_moved_to(part, device) for part in value)
    return value.to(device) if isinstance(value, Tensor) else value
