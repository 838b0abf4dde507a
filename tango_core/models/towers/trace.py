"""Hidden states of the layers of a vision tower, for analyses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tango_core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

# Is told the number of a layer, 0 for the embeddings, and its output.
Observer = Callable[[int, "Tensor"], None]


@dataclass(frozen=True, eq=False)
class TowerTrace:
    """One clip in a tower, patch by patch: the grid is the tower's, before tokens are pooled.

    Layer 0 are the embeddings, layer n the output of the n-th block; the last one is that of the
    last block that the model runs.

    Attributes:
        grid: (rows, columns) of patches, P in all.
        norms: (T, layers + 1, P) float32 Euclidean norm of every patch after every layer.
        hidden: Layer -> (T, P, C), in the tower's dtype, of the layers that were asked for.
        attention: (T, P) float32 mean attention that a patch receives in the last block.
    """

    grid: tuple[int, int]
    norms: Tensor
    hidden: Mapping[int, Tensor]
    attention: Tensor

    @property
    def num_layers(self) -> int:
        """Blocks that the model runs."""
        return int(self.norms.shape[1]) - 1


class LayerNotes:
    """Notes norms, and the values of some layers, while a batch of frames is in a tower.

    Args:
        layers: Those whose values are kept.
        reshape: Brings a layer's output to (f, P, C).
    """

    def __init__(
        self, layers: Collection[int], reshape: Callable[[Tensor], Tensor] = lambda hidden: hidden
    ) -> None:
        self._layers, self._reshape = layers, reshape
        self._norms: list[Tensor] = []
        self._hidden: dict[str, Tensor] = {}

    def __call__(self, layer: int, hidden: Tensor) -> None:
        """Take the output of a layer; layers come in order."""
        values = self._reshape(hidden)
        self._norms.append(values.float().norm(dim=-1))
        if layer in self._layers:
            self._hidden[f"layer {layer}"] = values

    def maps(self, attention: Tensor) -> dict[str, Tensor]:
        """Tensors with one row per frame, as batches are put together."""
        from torch import stack

        return {"norms": stack(self._norms, dim=1), "attention": attention, **self._hidden}


def trace_of(maps: Mapping[str, Tensor], grid: tuple[int, int]) -> TowerTrace:
    """The trace of a clip from the maps of its batches."""
    hidden = {
        int(name.removeprefix("layer ")): values
        for name, values in maps.items()
        if name.startswith("layer ")
    }
    return TowerTrace(grid, maps["norms"], hidden, maps["attention"])


def raise_if_no_layer(layers: Collection[int], num_layers: int, model: str) -> None:
    """Refuse layers that a tower does not run.

    Raises:
        InputError: In one line that names those that exist.
    """
    wrong = sorted(layer for layer in layers if not 0 <= layer <= num_layers)
    if wrong:
        raise InputError(
            f"layer {wrong[0]} is not one of the tower of model {model}: it must be from 0 "
            f"(embeddings) to {num_layers} (the last block that the model runs)"
        )
