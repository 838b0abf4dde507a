"""Read token sets where questions are answered; what cannot be used is made a miss."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.cache.plans import OutdatedPlanError
from pipeline.cache.stored_features import FeaturesDamagedError
from pipeline.cache.tokens import CacheError, Entry, TokenCache


def read_tokens(
    caches: Mapping[str, TokenCache], cache: str, key: str, unread: dict[str, CacheError]
) -> Entry:
    """A clip's tokens from one cache of a job.

    Where features are not those of a plan, the plans of the other caches are looked at, too: they
    are as old, and all are computed again at once.

    Args:
        caches: Cache name -> cache, of the whole job.
        cache: Name of the one to read from.
        key: Of the clip.
        unread: Cache name -> error, of the same clip: what was removed is not looked for again.

    Raises:
        OutdatedPlanError: If there is no token set that could be read, and the next plan of a job
            will know that.
        CacheError: If the entry is damaged; it is removed, for the next attempt to compute it.
    """
    if cache in unread:
        raise unread[cache]
    try:
        return caches[cache].read(key)
    except (OutdatedPlanError, FeaturesDamagedError, FileNotFoundError) as error:
        for one in caches.values():
            one.drop_outdated(key)
        reason = f"{error}; --resume computes it again"
        unread[cache] = OutdatedPlanError(reason)
        raise unread[cache] from error
    except CacheError as error:
        caches[cache].discard(key)
        unread[cache] = CacheError(f"{error}; it was removed, --resume computes it again")
        raise unread[cache] from error
