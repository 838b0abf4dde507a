"""What features in 8 bits change: `python -m tests.perf.feature_bits`, on the embedded model.

Answers of four methods about 40 clips, from exact features and from rounded ones. Beside them what
else changes answers: the same job again in new caches, and the model in bfloat16, whose rounding
nobody calls a loss.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from jobs_for_tests import answers_of, job, plan_of
from rich.console import Console

from jobs.run.build import build
from jobs.run.directories import new_run_dir
from jobs.run.driver import execute
from jobs.run.locations import Locations
from pipeline.cache.feature_rows import quantise, restore
from tests.perf.timing import about_machine

RESULTS = Path(__file__).parent / "results" / "feature_bits.md"
CLIPS = 40
METHODS = [
    {"name": "full"},
    {"name": "topk", "retention": 0.1},
    {"name": "divprune", "retention": 0.1},
    {"name": "tango", "retention": 0.1},
]
KEYS = ["cell", "video_id", "question_id"]
VARIANTS: dict[str, dict[str, Any]] = {
    "features in 8 bits": {"cache": {"features": "all", "feature_dtype": "int8"}},
    "the same again, in new caches": {},
    "model in bfloat16": {"model": {"dtype": "bfloat16"}},
}


def answers(shapes: Path, folder: Path, **changes: Any) -> pd.DataFrame:
    """The answers of one job, in a fixed order."""
    recipe = {"limit": CLIPS, "methods": METHODS, "executor": "local", "cache": {"features": "all"}}
    one = job(shapes, **{**recipe, **changes})
    run_dir = new_run_dir(one, folder)
    execute(one, build(one), "sweep", Locations(folder), run_dir, Console(file=io.StringIO()))
    return answers_of(run_dir).sort_values(KEYS).reset_index(drop=True)


def relative_errors(shapes: Path, folder: Path) -> tuple[float, float, float, float]:
    """Of rounded tokens, per token: median and worst; of their direction: median and worst."""
    plan = plan_of(job(shapes, limit=CLIPS, cache={"features": "all"}), folder / "cache")
    assert plan.features is not None
    errors, angles = [], []
    for key in sorted(plan.features.cache.parts()["tokens"]):
        flat = plan.features.cache.opened(key).tokens()[0].flatten(0, 1)
        rounded = restore(*quantise(flat), "float32")
        errors.append((rounded - flat).norm(dim=1) / flat.norm(dim=1))
        angles.append(1 - torch.cosine_similarity(rounded, flat, dim=1))
    error, angle = torch.cat(errors), torch.cat(angles)
    return (
        float(error.median()),
        float(error.max()),
        float(angle.median().clamp(min=0)),
        float(angle.max()),
    )


def row(name: str, base: pd.DataFrame, other: pd.DataFrame) -> list[str]:
    """How many replies differ, over all and per cell."""
    assert base[KEYS].equals(other[KEYS])
    changed = (base["text"] != other["text"]).to_numpy()
    kept = (base["tokens_kept"] != other["tokens_kept"]).to_numpy()
    right = other["correct"].astype(float).mean() - base["correct"].astype(float).mean()
    cells = [f"{int(changed[base['cell'] == cell].sum())}" for cell in dict.fromkeys(base["cell"])]
    share = 100 * changed.mean()
    return [
        name,
        f"{int(changed.sum())} of {len(changed)} ({share:.2f} %)",
        *cells,
        f"{100 * right:+.2f}",
        f"{100 * np.mean(kept):.1f} %",
    ]


def main() -> None:
    """Measure and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        base = answers(root / "shapes", root / "base")
        errors = relative_errors(root / "shapes", root / "base")
        rows = []
        for number, (name, changes) in enumerate(VARIANTS.items()):
            rows.append(row(name, base, answers(root / "shapes", root / f"v{number}", **changes)))
            print(rows[-1], flush=True)
    cells = list(dict.fromkeys(base["cell"]))
    header = ["against the first run", "changed replies", *cells, "accuracy", "other token count"]
    lines = [
        "# Features in 8 bits",
        "",
        f"`python -m tests.perf.feature_bits`: the embedded model, {CLIPS} clips,",
        f"{len(base)} answers.",
        "Accuracy is a difference in points.",
        "",
        ", ".join(f"{key} {value}" for key, value in about_machine().items()) + ".",
        "",
        f"| {' | '.join(header)} |",
        f"|---|{'---:|' * (len(header) - 1)}",
        *(f"| {' | '.join(one)} |" for one in rows),
        "",
        "Tokens in 8 bits with a scale per token: relative error (norm of the difference over the "
        f"token's norm) {100 * errors[0]:.2f} % at the median, {100 * errors[1]:.2f} % at worst; "
        f"1 - cosine {errors[2]:.1e} at the median, {errors[3]:.1e} at worst.",
        "",
    ]
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
