"""SToP: reduce the attention of positions that are attended in every frame before ranking by it.

Paper: "SToP", arXiv 2604.20937; release rlqja1107/SToP at 3bf998c. It is not a
method but an option `stop` of methods that rank by received attention: positions whose attention is
high during the whole clip are treated as sinks.

The strengths are absolute: attention must have its natural scale, where a row of the vision tower's
attention sums to 1. On this scale the published strengths exceed the range of attention of many
clips. If attention hardly changes over time, the sink score increases with attention, so the
reduced attention reverses the ranking; for a clip of one frame exactly the least attended tokens
would be kept. So a clip of one frame is compressed without `stop`, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from torch import Tensor

from tango_core.compressors.options import Range, Strength, check_ranges, checked_options
from tango_core.errors import InputError
from tango_core.types import VisualFeatures

logger = logging.getLogger(__name__)

# Factor of a position's sink score that is subtracted from its score as a cluster centre.
ANCHOR_PENALTY = 0.3


@dataclass(frozen=True)
class Stop:
    """The values of the option `stop`.

    Attributes:
        spatial: mu_s, factor of the sink scores subtracted from attention; 0 or larger.
        temporal: mu_t, factor of the sink scores added to the cosines that decide whether a
            position is static; 0 or larger, and 0 for methods without static positions.
        gamma: Exponent of the sink scores, above 0.
        legacy: Reproduce the release including its faults.
    """

    spatial: Strength
    temporal: Strength
    gamma: Annotated[float, Range("in [0.001, 100]", lambda value: 1e-3 <= value <= 100)] = 1.1
    legacy: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        check_ranges(self)

    def sink_scores(self, attention: Tensor) -> Tensor:
        """(..., L) float32 sink scores in [0, 1] from (..., T, L) attention."""
        powers = attention.float().mean(dim=-2) ** self.gamma
        least, most = powers.aminmax(dim=-1, keepdim=True)
        return (powers - least) / (most - least + 1e-12)

    def lowered(self, attention: Tensor) -> Tensor:
        """(T, L) float32 attention minus `spatial` times the sink scores of the whole clip."""
        return attention.float() - self.spatial * self.sink_scores(attention)


def checked_stop(
    method: str, stop: Mapping[str, Any], published: tuple[float, float]
) -> dict[str, Any]:
    """Check `stop` and fill in the published values of the method.

    Args:
        method: The method's name for error messages.
        stop: Values from the recipe.
        published: (spatial, temporal) strengths.

    Raises:
        ValueError: For an unknown key or a value out of range.
    """
    spatial, temporal = published
    given = checked_options(
        f"{method}.stop", Stop, {"spatial": spatial, "temporal": temporal, **stop}
    )
    try:
        resolved = Stop(**given)
    except ValueError as error:
        raise InputError(f"stop.{error}") from error
    if not temporal and resolved.temporal:
        raise InputError(
            f"stop.temporal must be 0 for {method}, which has no static positions; "
            f"got {resolved.temporal}"
        )
    return asdict(resolved)


def stop_for(stop: Mapping[str, Any] | None, features: VisualFeatures) -> Stop | None:
    """The option for one clip; `None` if it is not set or the clip has one frame."""
    if stop is None:
        return None
    if len(features.tokens) == 1:
        logger.warning(
            "stop is skipped for a clip of one frame: it would keep its least attended tokens"
        )
        return None
    return Stop(**stop)
