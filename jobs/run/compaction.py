"""Token caches in a store are compacted when a job has filled them: few objects, quick plans."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pipeline.cache.compact import compact_cache
from pipeline.cache.folders import find_caches
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage

logger = logging.getLogger(__name__)

# Below this a listing is one request all the same.
AT_LEAST = 500


def compact_if_remote(root: Storage, names: Iterable[str], clock: Clock = SYSTEM_CLOCK) -> None:
    """Put the single clips of a job's caches into shards if the caches are in a store.

    What goes wrong is a warning: the clips are good where they are.

    Args:
        root: Of the caches.
        names: Caches of the job.
        clock: See `compact_cache`.
    """
    names = list(names)
    if root.is_local or not names:
        return
    try:
        for folder in find_caches(root, names):
            if folder.cache is None or len(folder.singles) < AT_LEAST:
                continue
            problems = [problem for _, problem in compact_cache(folder, clock) if problem]
            logger.info("%s: compacted", folder.name)
            for problem in problems[:5]:
                logger.warning("%s: %s", folder.name, problem)
    except (OSError, ValueError) as error:
        logger.warning(
            "the caches in %s are not compacted (%s); `tango cache compact` does it later",
            root.location,
            error,
        )
