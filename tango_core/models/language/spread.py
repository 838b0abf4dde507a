"""Layers on several devices.

A language model that no single GPU holds has its layers on several (`placement.spread_layers`).
Around the layers everything is on the first device, the home: token ids, positions, masks, logits.
Hidden states move where the next layer is elsewhere; keys and values stay with their layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


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
