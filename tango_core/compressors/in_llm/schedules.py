"""From an average over all layers to what an in-LLM method keeps from each of its layers on.

In-LLM methods are compared by their equivalent retention: the share of the visual tokens that
enters a layer, averaged over all layers of the language model. Their papers state what is
kept locally.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tango_core.compressors.base import LayerPruner
from tango_core.errors import InputError


@dataclass(frozen=True)
class OneStepPruner(LayerPruner):
    """Lets all tokens through the first `layer` layers and keeps one share of them from there on.

    Attributes:
        retention: Share of the visual tokens, averaged over all layers.
        layer: 0-based layer whose input is pruned, by what the layer before it computed.
    """

    layer: int = 2

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.layer < 1:
            raise InputError(
                f"layer must be 1 or larger, since layer - 1 gives the scores; got {self.layer}"
            )

    def local_retention(self, num_layers: int) -> float:
        """Share kept from `layer` on, in (0, 1].

        Layer 2 of 28 turns 0.10, 0.15 and 0.20 into 0.0308, 0.0846 and 0.1385.

        Raises:
            ValueError: If the layers before `layer` alone use up the average.
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
        # Rounded so that a local share of one half is exactly that, for the rounding of budgets.
        return round(left / (num_layers - self.layer), 12)

    def layers(self, num_layers: int) -> tuple[int, ...]:
        """The one layer, after a check that `retention` can be met there."""
        layers = super().layers(num_layers)
        self.local_retention(num_layers)
        return layers

    def layer_shares(self, num_layers: int) -> tuple[float, ...]:
        """1 before `layer`, the local share from it on; the mean is `retention`."""
        (layer,) = self.layers(num_layers)
        return (1.0,) * layer + (self.local_retention(num_layers),) * (num_layers - layer)


@dataclass(frozen=True)
class StagedPruner(LayerPruner):
    """Prunes at several layers; the published shares are scaled by one factor to meet `retention`.

    The published methods fix both the layers and the shares, and with them one average. Here the
    stages' shares are multiplied by a common factor (none above 1) such that the average over the
    layers is `retention`. With the default stages the first one also moves towards the input for
    small targets, so that the layers that see all tokens take no larger part of the budget than as
    published; otherwise they alone would exceed it.

    Attributes:
        retention: Share of the visual tokens, averaged over all layers.
        layer: Layers that see all tokens at least, where the target allows: a published first stage
            before this layer moves up to it, but stays below the second. Not used with `stages`.
        stages: Ascending 0-based layers whose inputs are pruned; `None` for the published ones.
            Given ones do not move.
        ratios: Published share kept from each stage on, of the prompt's visual tokens; in (0, 1],
            not increasing.
    """

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

    @property
    @abstractmethod
    def first_layer(self) -> int:
        """Lowest layer at which the method can rank tokens."""

    @abstractmethod
    def published_stages(self, num_layers: int) -> tuple[int, ...]:
        """Where the method prunes a language model of `num_layers` layers, one layer per ratio."""

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
        """Given stages, or the published ones with the first where the target allows it."""
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
    """Whether every layer is above the one before it."""
    return all(later > earlier for earlier, later in pairwise(stages))


def _lengths(stages: Sequence[int], num_layers: int) -> list[int]:
    """Layers from each stage to the next, or to the end."""
    return [stop - start for start, stop in pairwise((*stages, num_layers))]


def _scaled(budget: float, lengths: Sequence[int], ratios: Sequence[float]) -> list[float]:
    """Scale ratios by one factor, none above 1, such that their sum over layers is `budget`."""
    for capped in range(len(ratios)):
        left = budget - sum(lengths[:capped])
        weight = sum(
            length * ratio for length, ratio in zip(lengths[capped:], ratios[capped:], strict=True)
        )
        factor = left / weight
        if factor * ratios[capped] <= 1:
            return [1.0] * capped + [factor * ratio for ratio in ratios[capped:]]
    return [1.0] * len(ratios)
