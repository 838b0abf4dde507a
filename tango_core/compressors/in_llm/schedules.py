"""Convert an average over all layers into the shares an in-LLM method keeps per layer.

In-LLM methods are compared by their equivalent retention: the share of the visual tokens that
enters a layer, averaged over all layers of the language model. Their papers state
the local shares.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from tango_core.compressors.base import LayerPruner
from tango_core.compressors.options import Count
from tango_core.errors import InputError


@dataclass(frozen=True)
class OneStepPruner(LayerPruner):
    """Keeps all tokens in the first `layer` layers and one constant share from there on.

    Attributes:
        retention: Share of the visual tokens, averaged over all layers.
        layer: 0-based layer whose input is pruned, using results of the previous layer.
    """

    layer: Count = 2

    def local_retention(self, num_layers: int) -> float:
        """Share kept from `layer` on, in (0, 1].

        Layer 2 of 28 turns 0.10, 0.15 and 0.20 into 0.0308, 0.0846 and 0.1385.

        Raises:
            ValueError: If the layers before `layer` alone exceed the average.
        """
        if self.retention == 1:
            return 1.0
        left = num_layers * self.retention - self.layer
        if left <= 0:
            raise InputError(
                f"retention {self.retention} cannot be reached with layer={self.layer}: all tokens "
                f"in {self.layer} of {num_layers} layers average to "
                f"{self.layer / num_layers:.6g}; lower layer or raise retention above that"
            )
        # Rounded so that a local share of one half is exactly 0.5 when budgets are rounded.
        return round(left / (num_layers - self.layer), 12)

    def layers(self, num_layers: int) -> tuple[int, ...]:
        """`layer`, after a check that `retention` can be reached."""
        layers = super().layers(num_layers)
        self.local_retention(num_layers)
        return layers

    def layer_shares(self, num_layers: int) -> tuple[float, ...]:
        """1 before `layer`, then the local share; the mean is `retention`."""
        (layer,) = self.layers(num_layers)
        return (1.0,) * layer + (self.local_retention(num_layers),) * (num_layers - layer)


@dataclass(frozen=True)
class StagedPruner(LayerPruner):
    """Prunes at several layers; the published shares are scaled by one factor to meet `retention`.

    The published methods have fixed layers and shares, hence a fixed average. Here the stages'
    shares are multiplied by a common factor (limited to 1 each) so that the average over the layers
    is `retention`. For small targets the first default stage also moves to an earlier layer, so
    that the layers that see all tokens use no larger part of the budget than in the published
    schedule; otherwise they alone would exceed it.

    Attributes:
        retention: Share of the visual tokens, averaged over all layers.
        layer: Minimum number of layers that see all tokens, if the target allows it: an earlier
            first default stage moves to this layer, but stays below the second. Not used with
            `stages`.
        stages: Ascending 0-based layers whose inputs are pruned; `None` for the published ones.
            Explicit stages are not moved.
        ratios: Published shares of the prompt's visual tokens kept from each stage on; in (0, 1],
            not increasing.
    """

    # Lowest layer at which the method can rank tokens.
    first_layer: ClassVar[int]

    layer: int = 2
    stages: tuple[int, ...] | None = None
    ratios: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if not self.ratios or not all(0 < ratio <= 1 for ratio in self.ratios):
            raise InputError(f"ratios must be a list of numbers in (0, 1], got {self.ratios}")
        if any(later > earlier for earlier, later in pairwise(self.ratios)):
            raise InputError(f"ratios must not increase, got {self.ratios}")
        if self.stages is not None:
            if len(self.stages) != len(self.ratios):
                raise InputError(
                    f"stages must name one layer per ratio ({len(self.ratios)}), got {self.stages}"
                )
            if self.stages[0] < self.first_layer or not _ascends(self.stages):
                raise InputError(
                    f"stages must ascend from {self.first_layer} or larger, got {self.stages}"
                )

    @abstractmethod
    def published_stages(self, num_layers: int) -> tuple[int, ...]:
        """Default stages for a language model of `num_layers` layers, one per ratio."""

    def schedule(self, num_layers: int) -> dict[int, float]:
        """Stage -> share of the prompt's visual tokens from it on, in (0, 1].

        Raises:
            ValueError: If a stage does not exist, or `retention` cannot be reached.
        """
        stages = self._stages(num_layers)
        if not _ascends(stages) or stages[-1] >= num_layers:
            raise InputError(
                f"stages {stages} do not fit a language model of {num_layers} layers; "
                f"set stages to {len(self.ratios)} ascending layers below {num_layers}"
            )
        lengths = _lengths(stages, num_layers)
        budget = num_layers * self.retention - stages[0]
        if budget <= 0:
            raise InputError(
                f"retention {self.retention} cannot be reached with stages={stages}: all tokens in "
                f"{stages[0]} of {num_layers} layers average to {stages[0] / num_layers:.6g}; "
                "lower the first of stages or raise retention above that"
            )
        shares = _scaled(budget, lengths, self.ratios)
        return dict(zip(stages, shares, strict=True))

    def layers(self, num_layers: int) -> tuple[int, ...]:
        """The stages."""
        return tuple(self.schedule(num_layers))

    def layer_shares(self, num_layers: int) -> tuple[float, ...]:
        """1 before the first stage, then the share of the last stage; the mean is `retention`."""
        schedule = self.schedule(num_layers)
        share, shares = 1.0, []
        for layer in range(num_layers):
            share = schedule.get(layer, share)
            shares.append(share)
        return tuple(shares)

    def _stages(self, num_layers: int) -> tuple[int, ...]:
        """Explicit stages, or the published ones with the first adapted to the target."""
        if self.stages is not None:
            return self.stages
        first, *later = self.published_stages(num_layers)
        first = max(first, min(self.layer, min(later, default=num_layers) - 1))
        published = first + sum(
            length * ratio
            for length, ratio in zip(
                _lengths((first, *later), num_layers), self.ratios, strict=True
            )
        )
        allowed = round(num_layers * self.retention * first / published)
        return (max(self.first_layer, min(first, allowed)), *later)


def _ascends(stages: Sequence[int]) -> bool:
    """Whether the stages are strictly ascending."""
    return all(later > earlier for earlier, later in pairwise(stages))


def _lengths(stages: Sequence[int], num_layers: int) -> list[int]:
    """Number of layers from each stage to the next, or to the end."""
    return [stop - start for start, stop in pairwise((*stages, num_layers))]


def _scaled(budget: float, lengths: Sequence[int], ratios: Sequence[float]) -> list[float]:
    """Scale ratios by one factor, limited to 1 each, so that their sum over layers is `budget`."""
    for capped in range(len(ratios)):
        left = budget - sum(lengths[:capped])
        weight = sum(
            length * ratio for length, ratio in zip(lengths[capped:], ratios[capped:], strict=True)
        )
        factor = left / weight
        if factor * ratios[capped] <= 1:
            return [1.0] * capped + [factor * ratio for ratio in ratios[capped:]]
    return [1.0] * len(ratios)
