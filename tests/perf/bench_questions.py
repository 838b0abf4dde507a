"""What methods that read the question cost, as ratios of processor time.

    OMP_NUM_THREADS=1 python tests/perf/bench_questions.py [--only PART ...]

eight     `cdpruner` per frame at 10 %, 32 x 196 x 3584: eight questions about a clip against one.
clip      `cdpruner` over the clip against `divprune`, 64 x 169 x 3584, at 10 and 25 %, and the peak
          memory of each above that of the features.
cells     Adding four cells to a job of 40 clips of the embedded world whose features are stored:
          methods that read the question against methods that do not, at 10 %, answers included.

Results go to tests/perf/results/questions.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from bench import about_machine
from jobs_for_tests import job, plan_of
from pipeline_cases import empty_cache, execute

from jobs.run.build import make_settings
from tango_core.compressors import build_method
from tango_core.types import VisualFeatures

RESULTS = Path(__file__).parent / "results" / "questions.json"
BLIND = ("divprune", "topk", "vidcom2", "prunevid")
READING: tuple[dict[str, Any], ...] = (
    {"name": "cdpruner"},
    {"name": "cdpruner", "relevance": "lm"},
    {"name": "semvid"},
    {"name": "rediprune", "space": "projected"},
)


def seconds_of(work: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def peak_gib() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def clip_of(num_frames: int, side: int, number: int) -> list[VisualFeatures]:
    """A clip of 3584 channels, once with each of `number` questions."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(num_frames, side * side, 3584, generator=generator)
    times = torch.arange(num_frames, dtype=torch.float64)
    clip = VisualFeatures(tokens, (side, side), times)
    texts = torch.randn(number, 12, 3584, generator=generator)
    return [replace(clip, question=text) for text in texts]


def eight() -> dict[str, Any]:
    asked, compressor = clip_of(32, 14, 8), build_method("cdpruner", retention=0.1).compressor
    pairs = [
        [seconds_of(lambda n=n: compressor.compress_for(asked[:n])) for n in (1, 8)]
        for _ in range(5)
    ]
    return {"bar": "<= 1.5", "ratio": median(eight / one for one, eight in pairs), "s": pairs}


def clip() -> dict[str, Any]:
    """Every method in a process of its own, whose peak memory is the method's."""
    found: dict[str, Any] = {"bar": "<= 3, and <= 2 GB"}
    for retention in (0.1, 0.25):
        for name in ("divprune", "cdpruner"):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
                measured = fresh.submit(measure_method, name, retention).result()
            found[f"{name} {retention}"] = measured
        times = [found[f"{name} {retention}"]["s"] for name in ("cdpruner", "divprune")]
        found[f"ratio {retention}"] = times[0] / times[1]
    return found


def measure_method(name: str, retention: float) -> dict[str, float]:
    """Processor seconds and memory of a method on a long clip."""
    torch.set_num_threads(1)
    asked, options = clip_of(64, 13, 1), {"variant": "clip"} if name == "cdpruner" else {}
    compressor, before = build_method(name, retention=retention, **options).compressor, peak_gib()
    return {"s": seconds_of(lambda: compressor.compress_for(asked)), "gib": peak_gib() - before}


def cells() -> dict[str, Any]:
    with empty_cache() as folder:
        recipe = {"limit": 40, "executor": "local", "cache": {"features": "all"}}

        def added(methods: list[dict[str, Any]]) -> float:
            wanted = job(folder / "clips", methods=methods, **recipe)
            settings = make_settings(wanted, None, "local", wanted.pools)
            return seconds_of(lambda: execute(plan_of(wanted, folder / "cache"), settings))

        added([{"name": "full"}, {"name": "topk", "retention": 0.1}])  # stores all features
        blind = [{"name": name, "retention": 0.1} for name in BLIND]
        reading = [{**method, "retention": 0.1} for method in READING]
        pairs = [[added(blind), added(reading)] for _ in range(3)]
    return {"bar": "<= 1.3", "ratio": median(two / one for one, two in pairs), "s": pairs}


PARTS = {"eight": eight, "clip": clip, "cells": cells}


def main() -> None:
    """Run the parts and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="*", choices=PARTS, help="keeps the other results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in options.only or PARTS:
        results[name] = PARTS[name]()
        print(name, json.dumps(results[name]), flush=True)
    results["machine"] = about_machine()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
