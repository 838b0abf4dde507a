"""SToP: lower the attention of places that are attended in every frame, before ranking by it.

Paper: "SToP", arXiv 2604.20937; release rlqja1107/SToP at 3bf998c. It is no method of its own but
an option `stop` of methods that rank by received attention: places whose attention stays high over
the whole clip are taken for sinks.

The strengths are absolute: attention must be on its natural scale, where a row of the vision
tower's map sums to 1. There the published strengths are larger than the whole range of attention of
many clips. Where attention hardly changes over time, the sink score rises with attention itself,
and ranking by what is left turns the order around; of a clip of one frame it would keep exactly the
least attended tokens. So a clip of one frame is compressed without it, and a warning says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from tango_core.compressors.options import checked_options, raise_if_below, raise_if_outside
from tango_core.errors import InputError
from tango_core.types import VisualFeatures

logger = logging.getLogger(__name__)

# Of a place's sink score, taken from its score as a cluster's centre.
ANCHOR_PENALTY = 0.3


@dataclass(frozen=True)
class Stop:
    """What `stop` says.

    Attributes:
        spatial: Strength mu_s with which sink scores lower attention; 0 or larger.
        temporal: Strength mu_t with which they make a place count as unchanged; 0 or larger, and 0
            for methods without such places.
        gamma: Exponent of the sink scores, above 0.
        legacy: Follow the release with its faults instead of the careful reading.
    """

    spatial: float
    temporal: float
    gamma: float = 1.1
    legacy: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        raise_if_below(self, 0.0, "spatial", "temporal")
        raise_if_outside(self, 1e-3, 100, "gamma")

    def sink_scores(self, attention: Tensor) -> Tensor:
        """(..., L) float32 in [0, 1] from (..., T, L) attention: how constant a place draws it."""
        powers = attention.float().mean(dim=-2) ** self.gamma
        least, most = powers.aminmax(dim=-1, keepdim=True)
        return (powers - least) / (most - least + 1e-12)

    def lowered(self, attention: Tensor) -> Tensor:
        """(T, L) float32 attention less what the sink scores of the whole clip take away."""
        return attention.float() - self.spatial * self.sink_scores(attention)


def checked_stop(
    method: str, stop: Mapping[str, Any], published: tuple[float, float]
) -> dict[str, Any]:
    """All values of `stop`, those that are not given as published for the method.

    Args:
        method: Its name, for messages.
        stop: What the user wrote.
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
            f"stop.temporal must be 0 for {method}, which has no static places to widen; "
            f"got {resolved.temporal}"
        )
    return asdict(resolved)


def stop_for(stop: Mapping[str, Any] | None, features: VisualFeatures) -> Stop | None:
    """The option for one clip: `None` if there is none, or the clip has one frame."""
    if stop is None:
        return None
    if len(features.tokens) == 1:
        logger.warning(
            "stop is skipped for a clip of one frame: it would keep its least attended tokens"
        )
        return None
    return Stop(**stop)
