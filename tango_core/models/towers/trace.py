"""Hidden states of the layers of a vision tower, for analyses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tango_core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

# Called with the index of a layer, 0 for the embeddings, and its output.
Observer = Callable[[int, "Tensor"], None]


def unobserved(layer: int, hidden: Tensor) -> None:
    """An observer that records nothing."""


@dataclass(frozen=True, eq=False)
class TowerTrace:
    """Activations of one clip in a tower, per patch, before tokens are pooled.

    Layer 0 are the embeddings, layer n the output of the n-th block; the last one is that of the
    last block that the model runs.

    Attributes:
        grid: (rows, columns) of patches, P in all.
        norms: (T, layers + 1, P) float32 Euclidean norm of every patch after every layer.
        hidden: (T, P, C) outputs of the requested layers, in the tower's dtype.
        attention: (T, P) float32 mean attention that a patch receives in the last block.
    """

    grid: tuple[int, int]
    norms: Tensor
    hidden: Mapping[int, Tensor]
    attention: Tensor

    @property
    def num_layers(self) -> int:
        """Number of blocks that the model uses."""
        return int(self.norms.shape[1]) - 1


class LayerNotes:
    """Records norms of all layers and outputs of some while a batch passes through a tower.

    Args:
        layers: Layers whose outputs are kept.
        reshape: Converts a layer's output to (f, P, C).
    """

    def __init__(
        self, layers: Collection[int], reshape: Callable[[Tensor], Tensor] = lambda hidden: hidden
    ) -> None:
        self._layers, self._reshape = layers, reshape
        self._norms: list[Tensor] = []
        self._hidden: dict[str, Tensor] = {}

    def __call__(self, layer: int, hidden: Tensor) -> None:
        """Record the output of a layer; called in the order of the layers."""
        values = self._reshape(hidden)
        self._norms.append(values.float().norm(dim=-1))
        if layer in self._layers:
            self._hidden[f"layer {layer}"] = values

    def maps(self, attention: Tensor) -> dict[str, Tensor]:
        """Tensors with one row per frame, as batches are put together."""
        from torch import stack

        return {"norms": stack(self._norms, dim=1), "attention": attention, **self._hidden}


def raise_if_no_layer(layers: Collection[int], num_layers: int, model: str) -> None:
    """Raise for layers that a tower does not run.

    Raises:
        InputError: If a layer does not exist; the message states the range.
    """
    wrong = sorted(layer for layer in layers if not 0 <= layer <= num_layers)
    if wrong:
        raise InputError(
            f"layer {wrong[0]} is not one of model {model}: 0 (embeddings) to {num_layers}"
        )
