"""Time HoliTom, FastVID and FlashVID against what no implementation of them can leave out.

    OMP_NUM_THREADS=1 python tests/perf/bench_floors.py [--threads N] [--repeats N]
        [--device cuda] [--dtype bfloat16]

The floor of a method on a clip is the matrices of similarities that it needs, as plain products in
their own shapes, and two passes over the tokens, as `bench_compress` has it for Tango. Every
repetition times floor and compression next to each other, so that a busy machine slows both; with
one thread it is processor time.

Results go to tests/perf/results/floors_<device>_<dtype>_<threads>threads.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from bench_methods import RETENTION, clock, with_signals
from compress_cases import make_features
from timing import machine, spread, timed

from tango_core.compressors import build_method, fastvid, holitom
from tango_core.compressors.flashvid import method as flashvid
from tango_core.compressors.flashvid import trees
from tango_core.types import VisualFeatures

METHODS = ("holitom", "fastvid", "flashvid")
KINDS = ("scenes", "noise", "half-frozen")

# (B, M, D) and (B, N, D): B matrices of M x N similarities.
Product = tuple[Tensor, Tensor]


def main() -> None:
    """Time three methods on three kinds of clips and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    about = {**machine(options), "clock": clock(options.device, options.threads)}
    results: dict[str, Any] = {"machine": about, "cases": []}
    for kind in KINDS:
        features = make_features(kind, options.device, getattr(torch, options.dtype))
        for name in METHODS:
            case = {"method": name, "clip": kind}
            results["cases"].append(case | measure(name, with_signals(features), options))
            print(json.dumps(results["cases"][-1]), flush=True)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    name = f"floors_{options.device}_{options.dtype}_{options.threads}threads"
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown(results))
    print(markdown(results))


def needed(name: str, features: VisualFeatures) -> list[Product]:
    """The products a method asks for, as seen at the functions that make them."""
    found: list[Product] = []

    def watch(module: Any, function: str, pair: Any) -> Any:
        original = getattr(module, function)

        def run(*arguments: Any) -> Any:
            found.append(pair(*arguments))
            return original(*arguments)

        return patch.object(module, function, run)

    def own(points: Tensor, *_: Tensor) -> Product:
        return points.float().clone(), points.float().clone()

    places = {
        "holitom": [(holitom, "squared_distances", own)],
        "fastvid": [(fastvid, "squared_distances", own)],
        "flashvid": [(flashvid, "write_products", own), (trees, "write_products", own)],
    }[name]
    watched = [watch(*place) for place in places]
    absorb = fastvid.FastVID._absorb

    def watched_absorb(
        self: Any, flat: Tensor, is_rest: Tensor, rows: slice, anchors: Tensor, padding: Tensor
    ) -> Tensor:
        targets = anchors.masked_fill(padding, rows.start).flatten()
        found.append((flat[targets].float()[None], flat[rows].float()[None]))
        return absorb(self, flat, is_rest, rows, anchors, padding)

    watched.append(patch.object(fastvid.FastVID, "_absorb", watched_absorb))
    compressor = build_method(name, retention=RETENTION).compressor
    for one in watched:
        one.start()
    compressor.compress(features)
    for one in watched:
        one.stop()
    return found


def measure(name: str, features: VisualFeatures, options: argparse.Namespace) -> dict[str, Any]:
    """Time one method on one clip."""
    compressor = build_method(name, retention=RETENTION).compressor
    pairs = needed(name, features)
    outputs = [one.new_empty(len(one), one.shape[1], other.shape[1]) for one, other in pairs]

    def products() -> None:
        for (one, other), output in zip(pairs, outputs, strict=True):
            torch.bmm(one, other.mT, out=output)

    def two_reads() -> None:
        features.tokens.sum()
        features.tokens.sum()

    runs = {
        "ours": lambda: compressor.compress(features),
        "products": products,
        "reads": two_reads,
    }
    for run in runs.values():
        run()
    column = 1 if clock(options.device, options.threads) == "processor" else 0
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(options.repeats):
        for label, run in runs.items():
            times[label].append(timed(run, options.device)[column])
    floors = [a + b for a, b in zip(times["products"], times["reads"], strict=True)]
    ratios = [a / b for a, b in zip(times["ours"], floors, strict=True)]
    flops = sum(2 * one.numel() * other.shape[1] for one, other in pairs)
    return {
        "gflop": round(flops / 1e9, 2),
        "ours_ms": spread(times["ours"]),
        "products_ms": spread(times["products"]),
        "two_reads_ms": spread(times["reads"]),
        "floor_ms": spread(floors),
        "ratio": spread(ratios),
        "ratio_of_minima": round(min(times["ours"]) / min(floors), 3),
    }


def markdown(results: dict[str, Any]) -> str:
    """The results as a table."""
    about = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    lines = [
        f"# Methods against their floors at retention {RETENTION}, 32 x 196 x 3584",
        "",
        about,
        "",
        f"Milliseconds of {results['machine']['clock']} time, minimum (median). The floor is the "
        "products of similarities a method needs, in their own shapes and without use of symmetry, "
        "and two reads of the tokens. Ratios are of minima, then minimum / median / maximum of "
        "pairs.",
        "",
        "| method | clip | ours | products | two reads | floor | ratio | of pairs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in results["cases"]:
        cells = [case["method"], case["clip"]]
        for key in ("ours_ms", "products_ms", "two_reads_ms", "floor_ms"):
            cells.append(f"{case[key]['min']:.1f} ({case[key]['median']:.1f})")
        cells.append(f"{case['ratio_of_minima']:.2f}")
        cells.append(" / ".join(f"{case['ratio'][key]:.2f}" for key in ("min", "median", "max")))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
