"""The benchmarks of a job as MLflow's dataset inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.redaction import redacted

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

_DESCRIBES = ("benchmark", "split", "seed", "protocol", "root", "limit", "shard")


def datasets_of(job: object) -> list[DatasetInput]:
    """One input per benchmark of a recipe, equal at the start of a job and at its end.

    The digest is of what the recipe says (benchmark, split, seed, protocol, limit, shard), so runs
    that asked the same questions have the same one; the files are not read.

    Args:
        job: Plain data of `job.yaml`.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    recipe = job if isinstance(job, Mapping) else {}
    sections = [recipe.get("benchmark"), *(recipe.get("benchmarks") or ())]
    inputs = []
    for section in sections:
        if not section:
            continue
        what = _described({**recipe, **section, "benchmark": section["name"]})
        questions = {key: value for key, value in what.items() if key != "root"}
        digest = hashlib.sha256(json.dumps(questions, sort_keys=True).encode()).hexdigest()[:8]
        root = what.get("root") or f"generated: {section['name']}"
        inputs.append(
            DatasetInput(
                Dataset(
                    name=f"{section['name']}:{section.get('split', 'test')}",
                    digest=digest,
                    source_type="local",
                    source=json.dumps({"uri": redacted(str(root))}),
                    profile=json.dumps(questions),
                ),
                [InputTag("mlflow.data.context", "evaluation")],
            )
        )
    return inputs


def _described(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What tells which questions are asked, and where they are."""
    return {key: recipe[key] for key in _DESCRIBES if recipe.get(key) is not None}
