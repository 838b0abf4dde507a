"""Identity of a recipe: the part that decides its answers, and its digest.

Two recipes of one identity give the same answers, so a run of one can be continued with the other.
A new recipe key that changes no answer gets its place in `_NOT_COMPUTED`, or in
`_NOT_COMPUTED_OF_MODEL`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.config.bounded_yaml import load_yaml
from jobs.config.recipe import Job

# A run may be continued with other workers and other time limits; the rest decides its results.
_NOT_COMPUTED = (
    "pools",
    "cluster",
    "decode",
    "tracking",
    "executor",
    "max_failures",
    "infeasible",
)
_NOT_COMPUTED_OF_MODEL = ("encode_batch",)


def computed_part(content: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the answers: a recipe without its workers and time limits.

    Args:
        content: A resolved recipe, as YAML gives it.
    """
    decode = content.get("decode")
    decoder = decode.get("decoder") if isinstance(decode, Mapping) else None
    kept = {key: value for key, value in content.items() if key not in _NOT_COMPUTED}
    model = content.get("model")
    if isinstance(model, Mapping):  # an option that is not set may be newer than the recipe
        kept["model"] = {
            key: value
            for key, value in model.items()
            if value is not None and key not in _NOT_COMPUTED_OF_MODEL
        }
    cache = kept.pop("cache", None)
    if isinstance(cache, Mapping) and cache.get("feature_dtype", "auto") != "auto":
        kept["cache"] = cache["feature_dtype"]  # rounded tokens; what is stored changes no answer
    return {**kept, "decode": decoder}


def job_digest(job: Job) -> str:
    """16 hexadecimal digits that are the same for every spelling of a job's values.

    `shard` and `limit` count, because they decide which clips are asked about; pools and executor
    do not.
    """
    plain = computed_part(load_yaml(job.to_yaml()))
    return _digest(plain)


def jobs_digest(jobs: Sequence[Job]) -> str:
    """The same for all jobs of one recipe; for one job it is that job's own."""
    return job_digest(jobs[0]) if len(jobs) == 1 else _digest([job_digest(job) for job in jobs])


def _digest(plain: Any) -> str:
    """Of plain data, whatever the order of its keys."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
