"""Token sets that turn out to be none while a job runs: their clips are planned again, in the job.

A plan of a clip is read only where its questions are asked. Before that, one listing per cache says
that the plan is there, and that features of the clip are. Of which tokens, it says where both are
in shards (`cache/contents.py`), and a plan for other tokens counts as missing then. It does not say
it of entries with files of their own, because names would have to carry digests, and readers
without a listing could not tell a name. So the job believes the listing, and a clip whose features
were encoded again since, with other bits, is found when it is read. Its outdated plans are removed
then, the clip is looked up again in every cache when the others are done, and only what is lacking
is computed: from the stored features if these are there, so usually nothing is decoded or encoded.
A job that meets none pays nothing. The same is done for an entry that was removed while the job
ran.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace

from pipeline.plan import Plan, look_up
from pipeline.rows import Row

logger = logging.getLogger(__name__)

RENEWALS = 2
"""How often clips are planned again; another job may replace features meanwhile, too."""


def renewed(
    attempt: Callable[[Plan], Generator[Row, None, None]], plan: Plan
) -> Generator[Row, None, None]:
    """Run a plan; clips with outdated token sets are run again after the others.

    Args:
        attempt: Runs a plan; it gives one `rows.RESULT` per clip.
        plan: What to do.

    Yields:
        One result per clip. Those that are `outdated` were so each time.
    """
    for left in range(RENEWALS, -1, -1):
        again: set[tuple[str, str]] = set()
        with closing(attempt(plan)) as results:
            for row in results:
                if row.get("outdated") and left:
                    again.add((row["benchmark"], row["video_id"]))
                else:
                    yield row
        if not again:
            return
        plan = _planned_again(plan, again)
        logger.info(
            "%d clip(s) had token sets that were removed, or made from features that were encoded "
            "again since; these are computed again",
            len(again),
        )


def _planned_again(plan: Plan, clips: set[tuple[str, str]]) -> Plan:
    """The plan of some clips of a plan, looked up in the caches as they are now."""
    names = zip(*(plan.clips[key].to_pylist() for key in ("benchmark", "video_id")), strict=True)
    kept = plan.clips.take([index for index, name in enumerate(names) if name in clips])
    needs = {name: compressor.needs for name, compressor in plan.compressors.items()}
    return replace(plan, clips=look_up(kept, plan.caches, plan.features, needs))
