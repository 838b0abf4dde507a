"""Plans that a job counts as hits and never reads: a few are looked at, and said what they are.

A listing tells plans for other tokens where both the plan and the features are in shards that say
so (`cache/contents.py`); these are no hits. Of plans or features with files of their own, and of
shards of earlier releases, a job that only fills caches believes the listing (`renewal.py` says
why), so it would leave plans whose features were encoded again since with other bits, and call them
cached. Looking at each would take requests per clip. Features are mostly replaced for many clips at
once, so a few plans of every such cache, spread evenly over the job's clips, tell; one that is
missed is found when its clip is to be answered. What is in the way of looking is no reason to stop
a job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache as remembered
from threading import Event

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.cache.features import FeatureCache
from pipeline.cache.names import PLAN, entry_name, file_of
from pipeline.cache.plans import StoredPlan
from pipeline.cache.sealed_rows import CacheError
from pipeline.cache.tokens import TokenCache, apart
from pipeline.plan import Plan

logger = logging.getLogger(__name__)

LOOKS = 16
"""Plans of a cache that are looked at."""
_READERS = 8


@dataclass(frozen=True)
class Looked:
    """What looking at some plans of a cache showed.

    Attributes:
        cache: Its name.
        num_plans: Plans that were read.
        num_outdated: Of these, for other tokens than the feature store holds now.
    """

    cache: str
    num_plans: int
    num_outdated: int


def warn_of_outdated(plan: Plan) -> None:
    """Name the caches of a job in which outdated plans count as hits."""
    found = [one for one in look_at_plans(plan) if one.num_outdated]
    if not found:
        return
    caches = ", ".join(
        f"{one.cache} ({one.num_outdated} of {one.num_plans} looked at)" for one in found
    )
    logger.warning(
        "clips counted as cached have plans for features that were encoded again since with other "
        "bits, which this command leaves as they are: %s; a job that answers computes them again, "
        "and so does this command after `tango cache verify --delete` with these names",
        caches,
    )


def look_at_plans(plan: Plan, at_most: int = LOOKS) -> list[Looked]:
    """Read some plans that a job counts as hits, and compare them with the features of their clips.

    Of the features only what stands beside the tokens is read.

    Args:
        plan: Of the job.
        at_most: Plans of each cache.

    Returns:
        One for every cache whose listing has plans that it is not sure of, in the plan's order.
    """
    caches = {
        name: cache
        for name, cache in apart(plan.caches).items()
        if plan.caches[name].unsure_plans and cache.features is not None
    }

    @remembered
    def digest_of(features: FeatureCache, key: str) -> str:
        return features.layout(key).digest

    hits = dict(_hits(plan.clips, list(caches), at_most))
    broken = Event()
    with ThreadPoolExecutor(_READERS) as readers:
        return list(
            readers.map(
                lambda name: _look(name, caches[name], hits[name], digest_of, broken), caches
            )
        )


def _hits(clips: pa.Table, names: Sequence[str], at_most: int) -> Iterator[tuple[str, list[str]]]:
    """Name of a cache -> keys of some clips that it holds by its listing."""
    is_ok = np.asarray(pc.equal(clips["status"], "ok").to_numpy(), dtype=bool)
    held = np.repeat(is_ok[:, None], len(names), axis=1)
    start = 0
    for chunk in clips["missing"].chunks:
        rows = pc.list_parent_indices(chunk).to_numpy()
        found = pc.index_in(pc.list_flatten(chunk), value_set=pa.array(names, pa.string()))
        which = found.fill_null(-1).to_numpy()
        held[start + rows[which >= 0], which[which >= 0]] = False
        start += len(chunk)
    for name, column in zip(names, held.T, strict=True):
        there = np.flatnonzero(column)
        yield name, clips["clip_key"].take(there[:: max(1, -(-len(there) // at_most))]).to_pylist()


def _look(
    name: str,
    cache: TokenCache,
    keys: Sequence[str],
    digest_of: Callable[[FeatureCache, str], str],
    broken: Event,
) -> Looked:
    """Read the plans of some clips; entries of other kinds are passed over.

    Nobody waits for a store that fails: it is given up for all caches at its first error.
    """

    @remembered
    def in_shards() -> Mapping[str, str]:
        cache.shards.refresh()
        return cache.shards.by_key()

    num_plans = num_outdated = 0
    for key in keys:
        if broken.is_set():
            break
        try:
            entry = entry_name(key, PLAN)
            if not cache.storage.exists(file_of(entry)) and entry not in in_shards():
                continue
            stored = cache.read_as_stored(key, [PLAN])
            assert isinstance(stored, StoredPlan)
            assert cache.features is not None
            differs = digest_of(cache.features, key) != stored.entry.tokens_digest
            num_plans += 1
            num_outdated += differs and not (cache.holds_tokens(key) or key in in_shards())
        except (FileNotFoundError, CacheError):
            continue  # removed just now, or damaged: that is for whoever reads it
        except OSError:
            broken.set()
    return Looked(name, num_plans, num_outdated)
