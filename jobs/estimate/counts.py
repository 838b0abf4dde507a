"""Clips and questions of a plan: what is in the caches, what is left to do."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow.compute as pc

from pipeline.plan import Plan
from pipeline.stages.declarations import DECODE_VIDEO


@dataclass(frozen=True)
class Counts:
    """What a plan holds.

    Attributes:
        clips: All of them.
        without_file: Clips whose file is missing; they fail at once.
        to_encode: Clips that are decoded and encoded: some cache lacks them, and the feature store
            does not hold what that cache needs.
        cached: Clips that every cache holds.
        questions: About clips that have a file.
        answers: Questions times methods; 0 for a job that only fills caches.
        missing: Cache name -> clips that it lacks.
        from_features: Clips of which token sets are computed from stored features.
    """

    clips: int
    without_file: int
    to_encode: int
    cached: int
    questions: int
    answers: int
    missing: dict[str, int]
    from_features: int = 0


def count(plan: Plan) -> Counts:
    """Count what a plan will do."""
    there = plan.clips.filter(pc.equal(plan.clips["status"], "ok"))
    to_encode = int(pc.sum(DECODE_VIDEO.taken(there)).as_py() or 0)
    cached = int(pc.sum(pc.equal(pc.list_value_length(there["missing"]), 0)).as_py() or 0)
    stored = pc.greater(pc.list_value_length(there["stored"]), 0)
    from_features = int(pc.sum(pc.and_not(stored, DECODE_VIDEO.taken(there))).as_py() or 0)
    lacking = pc.value_counts(pc.list_flatten(there["missing"]))
    missing = {str(one["values"]): int(one["counts"]) for one in lacking.to_pylist()}
    questions = sum(
        len(json.loads(text))
        for batch in there.select(["questions"]).to_batches(max_chunksize=10_000)
        for text in batch["questions"].to_pylist()
    )
    return Counts(
        clips=plan.clips.num_rows,
        without_file=plan.clips.num_rows - there.num_rows,
        to_encode=to_encode,
        cached=cached,
        questions=questions,
        answers=questions * len(plan.methods) if plan.answer else 0,
        missing={name: missing.get(name, 0) for name in plan.caches},
        from_features=from_features,
    )
