"""Time `Tango.compress` against its arithmetic floor and against a plain transcription.

    OMP_NUM_THREADS=N python tests/perf/bench_compress.py [--threads N] [--repeats N]
        [--device cuda] [--dtype bfloat16]

The floor of a case is what no implementation can leave out: the Gram matrix of every group of
tokens that is clustered, and two passes over the tokens. Two variants are reported: products run in
the groups' own shapes (`floor`), and the same number of operations at the best rate this machine
showed in the same run (`floor at peak`). Every repetition times floor and compression next to each
other, so that a busy machine slows both; ratios are of pairs, and minimum, median and maximum are
given. With one thread, processor time is reported too, which other processes disturb less.

Results go to tests/perf/results/compress_<device>_<threads>.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import reference_tango
from compress_cases import CASES, DIM, Case, make_features
from timing import machine, spread, timed

from tango_core import combination
from tango_core.compressors.tango import method as tango_module
from tango_core.compressors.tango import selection as tango_select
from tango_core.compressors.tango.method import Tango
from tango_core.ops.segmentation import adjacent_products
from tango_core.types import VisualFeatures

STAGES = {
    "similarity": (tango_module, "adjacent_products"),
    "plan": (tango_module, "plan_groups"),
    "distances": (tango_select, "distances_between"),
    "peaks": (tango_select, "density_peaks"),
    "assign": (tango_select, "assign_to_centers"),
    "merge": (combination, "gather_weighted"),
}


def main() -> None:
    """Run all cases and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--no-reference", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {"machine": machine(options), "cases": []}
    for case in CASES:
        results["cases"].append(measure(case, options))
        print(json.dumps(results["cases"][-1]))
    name = f"compress_{options.device}_{options.dtype}_{options.threads}threads"
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown(results))
    print(markdown(results))


@contextmanager
def stage_timers(device: str) -> Iterator[dict[str, float]]:
    """Replace the stages' functions by ones that add up their milliseconds."""
    spent: dict[str, float] = defaultdict(float)
    originals = {stage: getattr(*place) for stage, place in STAGES.items()}

    def wrap(stage: str) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            if device != "cpu":
                torch.cuda.synchronize()
            start = time.perf_counter()
            result = originals[stage](*args, **kwargs)
            if device != "cpu":
                torch.cuda.synchronize()
            spent[stage] += (time.perf_counter() - start) * 1e3
            return result

        return run

    for stage, (module, name) in STAGES.items():
        setattr(module, name, wrap(stage))
    try:
        yield spent
    finally:
        for stage, (module, name) in STAGES.items():
            setattr(module, name, originals[stage])


def pool_sizes(tango: Tango, features: VisualFeatures) -> list[int]:
    """Tokens of every group that has to be clustered."""
    squares, products = adjacent_products(features.tokens.float())
    groups = tango._budgets(features, squares, products)[0]
    return [group.num_left for group in groups if 0 < group.merged < group.num_left]


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Time one case."""
    device = options.device
    features = make_features(case.kind, device, getattr(torch, options.dtype))
    tango = Tango(case.retention)
    sizes = pool_sizes(tango, features)
    flops = sum(2 * size**2 * DIM for size in sizes)
    rows = features.tokens.float().reshape(-1, DIM)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]) % max(1, len(rows) - max(sizes))
    views = [rows[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    outputs = [torch.empty(size, size, device=device) for size in sizes]
    large = rows[:2752]

    def products() -> None:
        for view, output in zip(views, outputs, strict=True):
            torch.mm(view, view.mT, out=output)

    def two_reads() -> None:
        features.tokens.sum()
        features.tokens.sum()

    runs = {
        "ours": lambda: tango.compress(features),
        "products": products,
        "two_reads": two_reads,
        "large": lambda: large @ large.mT,
    }
    for run in runs.values():
        run()
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(options.repeats):
        for name, run in runs.items():
            times[name].append(timed(run, device))
    best_stages: dict[str, float] = {}
    with stage_timers(device) as spent:
        for _ in range(5):
            spent.clear()
            tango.compress(features)
            if not best_stages or sum(spent.values()) < sum(best_stages.values()):
                best_stages = dict(spent)
    large_flops = 2 * len(large) ** 2 * DIM
    result: dict[str, Any] = {
        "case": case.name,
        "pools": len(sizes),
        "gram_gflop": round(flops / 1e9, 2),
        "stages_ms": {stage: round(value, 2) for stage, value in best_stages.items()},
    }
    clocks = {"wall": 0} if device != "cpu" or options.threads > 1 else {"wall": 0, "cpu": 1}
    for clock, column in clocks.items():
        ours, gemm, reads, peak = (
            [pair[column] for pair in times[name]]
            for name in ("ours", "products", "two_reads", "large")
        )
        floors = [a + b for a, b in zip(gemm, reads, strict=True)]
        at_peak = [a * flops / large_flops + b for a, b in zip(peak, reads, strict=True)]
        result[clock] = {
            "ours_ms": spread(ours),
            "floor_ms": spread(floors),
            "floor_at_peak_ms": spread(at_peak),
            "ratio": spread([a / b for a, b in zip(ours, floors, strict=True)]),
            "ratio_of_minima": round(min(ours) / min(floors), 3),
            "ratio_at_peak": spread([a / b for a, b in zip(ours, at_peak, strict=True)]),
            "ratio_at_peak_of_minima": round(min(ours) / min(at_peak), 3),
            "gflop_per_s": {
                "pools": round(flops / min(gemm) / 1e6, 1),
                "large": round(large_flops / min(peak) / 1e6, 1),
            },
        }
    if not options.no_reference:
        result |= against_reference(tango, features, device)
    return result


def against_reference(tango: Tango, features: VisualFeatures, device: str) -> dict[str, Any]:
    """Time the transcription and compare what it keeps."""
    ours = tango.compress(features)
    times = []
    for _ in range(3):
        milliseconds, cpu = timed(
            lambda: reference_tango.compress(features, tango.retention, tango.resolved_tau), device
        )
        times.append(milliseconds if device != "cpu" or torch.get_num_threads() > 1 else cpu)
    kept, tokens = reference_tango.compress(features, tango.retention, tango.resolved_tau)
    error = float("nan")
    if torch.equal(kept, ours.indices.cpu()):
        error = float((tokens - ours.tokens.float()).abs().max() / tokens.abs().max())
    return {
        "reference_ms": spread(times),
        "kept": ours.num_kept,
        "kept_sets_equal": torch.equal(kept, ours.indices.cpu()),
        "largest_relative_difference": error,
    }


def markdown(results: dict[str, Any]) -> str:
    """The results as a table per clock, with the stages below."""
    about = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    lines = ["# Tango.compress, 32 x 196 x 3584", "", about, ""]
    for clock in ("wall", "cpu"):
        cases = [case for case in results["cases"] if clock in case]
        if not cases:
            continue
        lines += [
            f"Milliseconds of {clock} time, minimum (median); ratios of minima (median of pairs).",
            "",
            "| case | ours | floor | ratio | floor at peak | ratio | transcription | kept sets |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for case in cases:
            row = case[clock]
            cells = [case["case"]]
            for key in ("ours_ms", "floor_ms"):
                cells.append(f"{row[key]['min']:.1f} ({row[key]['median']:.1f})")
            cells.append(f"{row['ratio_of_minima']:.2f} ({row['ratio']['median']:.2f})")
            cells.append(f"{row['floor_at_peak_ms']['min']:.1f}")
            peak = row["ratio_at_peak"]["median"]
            cells.append(f"{row['ratio_at_peak_of_minima']:.2f} ({peak:.2f})")
            cells.append(f"{case['reference_ms']['min']:.0f}" if "reference_ms" in case else "-")
            cells.append({True: "equal", False: "DIFFER"}.get(case.get("kept_sets_equal"), "-"))
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    stages = list(dict.fromkeys(stage.strip() for stage in STAGES))
    lines += ["| case | " + " | ".join(stages) + " |", "|---" * (len(stages) + 1) + "|"]
    for case in results["cases"]:
        values = [f"{case['stages_ms'].get(stage, 0):.1f}" for stage in stages]
        lines.append(f"| {case['case']} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
