"""The methods of a job and the caches of their compressors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.cache.directory import TokenCache, open_cache
from pipeline.cache.features import FeatureCache
from pipeline.cache.rows import INT8
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from tango_core.compressors import Method
from tango_core.compressors.base import Compressor
from tango_core.errors import InputError
from tango_core.models.base import ModelSpec


@dataclass(frozen=True)
class PlannedMethod:
    """A method of a job with its options and its cache.

    Attributes:
        name: Unique within the job, e.g. `"tango r=0.1"`.
        method: Compressor and, for some, in-LLM pruner.
        cache: Name of the cache its compressor fills; methods with equal compressors share one.
    """

    name: str
    method: Method
    cache: str

    @property
    def retention(self) -> float:
        """Requested share of the visual tokens."""
        return float(self.method.options.get("retention", self.method.compressor.retention))


def plan_methods(
    methods: Sequence[tuple[str, Method]],
    model: ModelSpec,
    cache_root: str | Storage,
    clock: Clock = SYSTEM_CLOCK,
    features: FeatureCache | None = None,
) -> tuple[tuple[PlannedMethod, ...], dict[str, Compressor], dict[str, TokenCache]]:
    """Open each method's cache; methods with equal compressors share one.

    Args:
        methods: Names and methods.
        model: The Video LLM.
        cache_root: Directory or URL of all caches.
        clock: Clock for the dates of cache entries.
        features: The feature cache of the job, if it has one.

    Returns:
        The methods, cache name -> compressor, and cache name -> cache.

    Raises:
        ValueError: If a method needs a signal that the model's encoder cannot compute.
    """
    from_int8 = features is not None and features.dtype == INT8
    planned: list[PlannedMethod] = []
    compressors: dict[str, Compressor] = {}
    caches: dict[str, TokenCache] = {}
    for name, method in methods:
        raise_if_not_served(name, method, model)
        cache = open_cache(cache_root, model, method.compressor, clock, from_int8=from_int8)
        compressors.setdefault(cache.name, method.compressor)
        caches.setdefault(cache.name, cache)
        planned.append(PlannedMethod(name, method, cache.name))
    return tuple(planned), compressors, caches


def raise_if_not_served(name: str, method: Method, model: ModelSpec) -> None:
    """Refuse a method that needs a signal that the model's encoder does not provide.

    Args:
        name: Name of the cell, for the message.
        method: The method.
        model: The model.

    Raises:
        InputError: If signals are missing; the message names them.
    """
    missing = method.compressor.needs - model.provides
    if missing:
        raise InputError(
            f"method {name!r} needs {', '.join(sorted(missing))}, which the encoder of model "
            f"{model.name!r} does not provide (it provides: "
            f"{', '.join(sorted(model.provides)) or 'nothing'}); set model.saliency_from to a "
            "SigLIP checkpoint with its pooling head, or choose another score"
        )
