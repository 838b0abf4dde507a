"""The feature store as a job uses it: where it is, and what of every clip the job leaves there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.cache.features import FeatureCache, open_features
from pipeline.cache.quantised import FeatureDtype
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from tango_core.models.base import ModelSpec

Stored = Literal["none", "tokens", "all"]
"""What a job stores of every clip that it encodes: nothing, its tokens, or its signals, too."""


@dataclass(frozen=True)
class FeatureStore:
    """The feature cache of a job.

    Attributes:
        cache: Where features are.
        signals: Those that are stored beside the tokens.
        fill: Whether the features of every clip are stored, or only of those that a missing token
            set is computed for.
    """

    cache: FeatureCache
    signals: frozenset[str]
    fill: bool = False


def open_store(
    root: str | Storage,
    model: ModelSpec,
    stored: Stored,
    dtype: FeatureDtype = "auto",
    *,
    fill: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> FeatureStore | None:
    """The feature store that a job asks for; `None` for a job without one.

    Args:
        root: Directory or URL of all caches.
        model: Whose features.
        stored: What is stored.
        dtype: How tokens are stored.
        fill: See `FeatureStore`.
        clock: Dates the entries.
    """
    if stored == "none":
        return None
    identity: Mapping[str, Any] = model.identity()
    signals = model.provides if stored == "all" else frozenset[str]()
    return FeatureStore(open_features(root, identity, dtype, clock), signals, fill)
