"""Identity of a recipe: the part that determines the answers, and its digest.

Recipes with the same identity give the same answers, so a run of one can be continued with the
other. New recipe keys that do not change answers belong in `_NOT_COMPUTED` or
`_NOT_COMPUTED_OF_MODEL`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.config.bounded_yaml import load_yaml
from jobs.config.recipe import Job

# Keys that do not affect the answers, such as workers and timeouts.
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
    """The part of a recipe that determines the answers.

    Args:
        content: A resolved recipe, parsed from YAML.
    """
    decode = content.get("decode")
    decoder = decode.get("decoder") if isinstance(decode, Mapping) else None
    kept = {key: value for key, value in content.items() if key not in _NOT_COMPUTED}
    model = content.get("model")
    if isinstance(model, Mapping):  # drop unset options, which older recipes may not have
        kept["model"] = {
            key: value
            for key, value in model.items()
            if value is not None and key not in _NOT_COMPUTED_OF_MODEL
        }
    cache = kept.pop("cache", None)
    if isinstance(cache, Mapping) and cache.get("feature_dtype", "auto") != "auto":
        kept["cache"] = cache["feature_dtype"]  # rounds tokens; other keys do not change answers
    return {**kept, "decode": decoder}


def job_digest(job: Job) -> str:
    """Digest (16 hexadecimal digits) of the part of a job that determines its answers.

    It includes `shard` and `limit`, which select the clips, but not pools and executor.
    """
    plain = computed_part(load_yaml(job.to_yaml()))
    return _digest(plain)


def jobs_digest(jobs: Sequence[Job]) -> str:
    """Digest of all jobs of one recipe; for a single job it equals `job_digest`."""
    return job_digest(jobs[0]) if len(jobs) == 1 else _digest([job_digest(job) for job in jobs])


def _digest(plain: Any) -> str:
    """Digest of plain data, independent of the order of keys."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
