"""Damaged recipes: the shipped ones and one with every section, read and checked as by `sweep`."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from jobs.config.recipe import load_jobs, parse_job
from jobs.run.build import build
from tests.chaos.fuzz.cases import Outcome
from tests.chaos.fuzz.commands import RefusedError, WrongEndError, tango, told
from tests.chaos.fuzz.values import damaged_text, mutated

_FOLDER = Path(__file__).parents[3] / "jobs/recipes"
# Every n-th case goes through the whole command, which builds the plan.
_WHOLE = 25

_FULL: dict[str, Any] = {
    "benchmarks": [{"name": "shapes", "root": "shapes", "split": "test", "seed": 0}],
    "model": {"name": "tiny", "num_frames": 4, "device": "cpu", "dtype": "float32"},
    "methods": [
        {"name": "full"},
        {"name": "tango", "retention": [0.1, 0.25], "alpha": 2.0, "theta": 0.5},
        {"name": "fastv", "retention": 0.5},
    ],
    "decode": {"decoder": "auto", "timeout_s": 120, "memory_gib": 4, "damaged": "fail"},
    "answer": {"batch_tokens": "auto"},
    "cache": {"features": "none"},
    "pools": {
        "decode": {"num_cpus": 1},
        "compress": {"num_actors": 1, "num_gpus": 0},
        "answer": {"num_actors": [1, 2], "num_gpus": 0},
    },
    "tracking": {"every_s": 10},
    "executor": "local",
    "limit": 3,
    "shard": "0/2",
    "max_failures": 0,
    "controls": True,
}


def run_recipe_case(seed: int, folder: Path) -> Outcome:
    """Damage one recipe and read it."""
    dice = random.Random(f"recipe {seed}")
    name, text = dice.choice(_recipes())
    done: list[str] = []
    if dice.random() < 0.75:
        content = mutated(yaml.safe_load(text), dice, done)
        data = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()
    else:
        data = damaged_text(text, dice, done)
    path = folder / "recipe.yaml"
    path.write_bytes(data)
    try:
        what = _read(path, folder, whole=seed % _WHOLE == 0)
        problem, said = "", ""
    except RefusedError as refused:
        what, problem, said = "refused in one line", "", str(refused)
        if not any(word in said for word in ("recipe.yaml", "benchmark", "model", "method")):
            problem = f"the line does not say where: {said}"
    except WrongEndError as error:
        what, problem, said = "traceback", str(error), ""
    return Outcome("recipes", name, what, problem, tuple(done), said)


def _read(path: Path, folder: Path, *, whole: bool) -> str:
    if whole:
        code, _ = tango("sweep", path, "--dry-run", "--output", folder / "runs")
        return f"dry run, exit code {code}"
    jobs = told(lambda: load_jobs(path))
    for job in jobs:  # what a run keeps of its recipe, and --resume reads
        again = told(lambda job=job: parse_job(yaml.safe_load(job.to_yaml()), str(path)))
        if again != job:
            raise WrongEndError(f"read again from its own YAML the recipe differs: {again}")
    for job in jobs:
        told(lambda job=job: build(job, source=str(path)))
    return "accepted"


@cache
def _recipes() -> list[tuple[str, bytes]]:
    shipped = [(path.name, path.read_bytes()) for path in sorted(_FOLDER.glob("*.yaml"))]
    full = ("every section", yaml.safe_dump(_FULL, sort_keys=False).encode())
    return [*shipped, *[full] * (len(shipped) // 2)]
