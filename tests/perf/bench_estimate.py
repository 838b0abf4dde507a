"""What `--dry-run` promises against what the job then does, on the embedded model.

    OMP_NUM_THREADS=1 python tests/perf/bench_estimate.py [--clips 40] [--no-ray]

probe     From nothing: ten clips are measured, then all of them run in a loop.
earlier   Other clips, from the rates of that run, in a loop again, with an empty cache.
half      Clips of which half are in the cache, in a loop.
ray       Other clips again, on a Ray of one's own with the default pools.

Times are those of the same machine minutes apart; where other work comes and goes, they follow it.
Results go to tests/perf/results/estimate.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from jobs_for_tests import job, run
from timing import about_machine

from jobs.results.summary import read_answers
from jobs.run.dry_run import DryRun, estimate_job
from jobs.run.locations import Locations

RESULTS = Path(__file__).parent / "results"
METHODS = [
    {"name": "full"},
    {"name": "topk", "retention": [0.1, 0.2]},
    {"name": "tango", "retention": [0.1, 0.2]},
    {"name": "visionzip", "retention": 0.1},
]

CASES = {
    "probe": "in a loop, from clips (ten at most) that were measured just before",
    "earlier": "other clips in a loop, from the rates of the run before",
    "half": "in a loop, half of the clips in the cache",
    "ray": "on Ray with the default pools, from rates that were measured in a loop",
}


def main() -> int:
    """Run all cases and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1, help="see tests.perf.bench")
    parser.add_argument("--no-ray", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="tango-estimate-") as folder:
        root = Path(folder)
        number = arguments.clips
        rows += compare("probe", root, number, seed=0, probe=True)
        rows += compare("earlier", root, number, seed=1)
        run(recipe(root, number // 2, seed=2), root)
        rows += compare("half", root, number, seed=2)
        if not arguments.no_ray:
            rows += compare("ray", root, number, seed=3, executor="ray")
    write(rows, number)
    return 0


def recipe(root: Path, clips: int, *, seed: int, executor: str = "local") -> Any:
    """A sweep of six cells over generated clips."""
    return job(
        root / "shapes",
        benchmark={"name": "shapes", "root": str(root / "shapes"), "seed": seed},
        model={"name": "tiny", "num_frames": 8},
        methods=METHODS,
        limit=clips,
        executor=executor,
    )


def compare(
    case: str, root: Path, clips: int, *, seed: int, probe: bool = False, executor: str = "local"
) -> list[dict[str, Any]]:
    """Promise, then do: one row per quantity."""
    one = recipe(root, clips, seed=seed, executor=executor)
    before = written_bytes(root / "cache")
    promised = estimate_job(one, "sweep", Locations(root), DryRun(probe=probe))
    done, run_dir = run(one, root)
    answers = read_answers(run_dir)
    pairs = {
        "clips to encode": (promised["counts"]["to_encode"], done.num_encoded),
        "answers": (promised["counts"]["answers"], len(answers)),
        "tokens in prompts": (promised["prompt_tokens"], int(answers["prompt_tokens"].sum())),
        "bytes of caches": (promised["cache_bytes"], written_bytes(root / "cache") - before),
        "wall time, s": (promised["time"]["wall_s"], done.facts.wall_s),
    }
    print(case, pairs, promised["time"]["bottleneck"], flush=True)
    return [
        {"case": case, "quantity": name, "predicted": own, "measured": real, "ratio": own / real}
        for name, (own, real) in pairs.items()
        if own is not None and real
    ]


def written_bytes(folder: Path) -> int:
    """Of all clips of all caches."""
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def write(rows: list[dict[str, Any]], clips: int) -> None:
    """`estimate.json` and `estimate.md`."""
    about = about_machine()
    (RESULTS / "estimate.json").write_text(
        json.dumps({"about": about, "rows": rows}, indent=1) + "\n"
    )
    lines = [
        "# The estimate of a dry run against the run",
        "",
        ", ".join(f"{name} {value}" for name, value in about.items()),
        "",
        f"{clips} clips of about 5 questions, 6 cells, embedded model with 8 frames. Tests hold",
        "tokens and bytes (2 %); times follow the load of the machine.",
        "",
        *(f"* `{case}`: {CASES[case]}" for case in dict.fromkeys(row["case"] for row in rows)),
        "",
        "| case | quantity | predicted | measured | predicted / measured |",
        "|---|---|---|---|---|",
        *(
            f"| {row['case']} | {row['quantity']} | {row['predicted']:,.{digits(row)}f} "
            f"| {row['measured']:,.{digits(row)}f} | {row['ratio']:.3f} |"
            for row in rows
        ),
    ]
    (RESULTS / "estimate.md").write_text("\n".join(lines) + "\n")


def digits(row: dict[str, Any]) -> int:
    """Decimals of a quantity."""
    return 1 if row["quantity"].endswith(", s") else 0


if __name__ == "__main__":
    sys.exit(main())
