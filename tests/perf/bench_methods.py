"""Time every method against a plain transcription of its publication, and against two reads.

    OMP_NUM_THREADS=N python tests/perf/bench_methods.py [--threads N] [--repeats N] [--seconds S]
        [--device cuda] [--dtype bfloat16] [--only NAME ...]

Methods before the language model compress a clip; methods inside it run one step on a prompt that
holds all tokens of that clip (`cases.py`). Every repetition times ours and the reference, each
behind two reads of the tokens, so that a busy machine slows all of them and both find the same
cache; ratios are of pairs, and minimum, median and maximum are given. With one thread it is
processor time, which other processes disturb less than wall time.

References check nothing, while `compress` refuses a clip with NaN or infinity in it. It looks once
per clip, whatever number of methods compress it, so the look is in no repetition but the first; a
look takes half of the two reads. The ratio with check adds one read to the reference's time: it is
that of rows that were measured when every method looked again.

Results go to tests/perf/results/methods_<device>_<dtype>_<threads>threads.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

import reference_tango
from cases import build_pruner, make_context, make_features, pruner_names
from references import COMPRESSORS, PRUNERS
from timing import machine, spread, timed

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Compressor, LayerContext
from tango_core.compressors.hybrid import INNER
from tango_core.compressors.tango.method import Tango
from tango_core.types import VisualFeatures

RETENTION = 0.1
KINDS = ("scenes", "noise")
KEY_DIM = 72
LEAST_REPEATS = 3

# What both sides keep, to compare: positions and tokens.
Kept = tuple[Tensor, Tensor]


def main() -> None:
    """Time all methods on two kinds of clips and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.7, help="per method and kind of clip")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--only", nargs="*", help="methods to time; the results are not written")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    about = {**machine(options), "clock": clock(options.device, options.threads)}
    results: dict[str, Any] = {"machine": about, "cases": []}
    dtype = getattr(torch, options.dtype)
    for kind in KINDS:
        features = with_signals(make_features(kind, options.device, dtype))
        prompt = make_context(features)
        for name in options.only or [*METHODS, *INNER]:
            if name in pruner_names():
                ours, reference = pruner_runs(name, prompt)
            else:
                ours, reference = compressor_runs(name, features)
            case = {"method": name, "clip": kind, "inside": name in pruner_names()}
            case |= measure(ours, reference, features.tokens, options)
            results["cases"].append(case)
            print(json.dumps(case), flush=True)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    name = f"methods_{options.device}_{options.dtype}_{options.threads}threads"
    print(markdown(results))
    if options.only:
        return
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown(results))


def with_signals(features: VisualFeatures) -> VisualFeatures:
    """The clip with every signal that some method reads."""
    generator = torch.Generator().manual_seed(1)
    keys = torch.randn(*features.tokens.shape[:2], KEY_DIM, generator=generator)
    return replace(
        features,
        attention=features.saliency,
        keys=keys.to(features.tokens),
        frame_embeddings=features.tokens.mean(dim=1),
    )


def compressor_runs(
    name: str, features: VisualFeatures
) -> tuple[Callable[[], Kept], Callable[[], Kept]]:
    """Our compressor and its reference."""
    options = {} if name in ("full", "block") else {"retention": RETENTION}
    compressor = build_method(name, **options).compressor
    assert isinstance(compressor, Compressor)

    def ours() -> Kept:
        video = compressor.compress(features)
        return video.indices, video.tokens

    if isinstance(compressor, Tango):
        tau = compressor.resolved_tau
        return ours, lambda: reference_tango.compress(features, RETENTION, tau)
    return ours, lambda: COMPRESSORS[name](features, RETENTION)


def pruner_runs(name: str, prompt: LayerContext) -> tuple[Callable[[], Kept], Callable[[], Kept]]:
    """One step of our pruner and of its reference; earlier layers have run."""
    pruner, layers, share = build_pruner(name, RETENTION)
    scratch: dict[str, Any] = {}
    *before, context = (replace(prompt, layer=layer, scratch=scratch) for layer in layers)
    for earlier in before:
        pruner.prune(earlier)
        PRUNERS[name](earlier, share)
    remembered = dict(scratch)

    def ours() -> Kept:
        scratch.clear()
        scratch.update(remembered)
        pruned = pruner.prune(context)
        return pruned.keep, pruned.hidden

    return ours, lambda: PRUNERS[name](context, share)


def measure(
    ours: Callable[[], Kept],
    reference: Callable[[], Kept],
    tokens: Tensor,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Time both sides next to each other and compare what they keep."""
    (indices, kept), (expected, vectors) = ours(), reference()
    differing = len(set(indices.tolist()) ^ set(expected.tolist())) // 2
    error = None
    if indices.tolist() == expected.tolist():
        error = float((kept.float() - vectors.float()).abs().max() / vectors.abs().max())
    num_kept = len(indices)
    del kept, vectors
    column = 1 if clock(options.device, options.threads) == "processor" else 0
    times: dict[str, list[float]] = defaultdict(list)
    start = time.perf_counter()
    for repeat in range(options.repeats):
        if repeat >= LEAST_REPEATS and time.perf_counter() - start > options.seconds:
            break
        for name, run in (("ours", ours), ("reference", reference)):
            reads = timed(lambda: (tokens.sum(), tokens.sum()), options.device)[column]
            times[name].append(timed(run, options.device)[column])
        times["reads"].append(reads)
    pairs = zip(times["reference"], times["reads"], strict=True)
    checked = [plain + reads / 2 for plain, reads in pairs]
    return {
        "pairs": len(times["ours"]),
        "ours_ms": spread(times["ours"]),
        "reference_ms": spread(times["reference"]),
        "ratio": spread(quotients(times["ours"], times["reference"])),
        "ratio_of_minima": round(min(times["ours"]) / min(times["reference"]), 3),
        "ratio_with_check": spread(quotients(times["ours"], checked)),
        "two_reads_ms": spread(times["reads"]),
        "multiple_of_two_reads": spread(quotients(times["ours"], times["reads"])),
        "kept": num_kept,
        "kept_by_one_side_only": differing,
        "largest_relative_difference": error,
    }


def clock(device: str, threads: int) -> str:
    """What is measured on this device with this many threads."""
    if device != "cpu":
        return "device"
    return "processor" if threads == 1 else "wall"


def quotients(values: list[float], others: list[float]) -> list[float]:
    """Ratios of pairs."""
    return [value / other for value, other in zip(values, others, strict=True)]


def markdown(results: dict[str, Any]) -> str:
    """The results as a table for methods before and one for steps inside the language model."""
    about = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    lines = [
        f"# Methods at retention {RETENTION}, 32 x 196 x 3584",
        "",
        about,
        "",
        f"Milliseconds of {results['machine']['clock']} time, minimum (median). "
        "Ratios to the plain reference are of minima, "
        "then minimum / median / maximum of pairs; with check: as if the reference looked for "
        "non-finite values too, as `compress` does; median. Two reads: ours as a multiple, median.",
        "",
        "`compress` looks for non-finite values in every method; the look takes half of two reads. "
        "Rows of 2026-11 of `full`, `random`, `uniform`, `topk` and the controls are without it, "
        "because a clip was then looked at once for all methods.",
        "",
    ]
    for title, inside in (("Before", False), ("One step inside", True)):
        cases = [case for case in results["cases"] if case["inside"] == inside]
        if not cases:
            continue
        lines += [
            f"## {title} the language model",
            "",
            "| method | clip | ours | reference | ratio | of pairs | with check | two reads | "
            "kept sets |",
            "|---|---|---|---|---|---|---|---|---|",
            *(f"| {' | '.join(row(case))} |" for case in cases),
            "",
        ]
    return "\n".join(lines)


def row(case: dict[str, Any]) -> list[str]:
    """Cells of one method and clip."""
    cells = [case["method"], case["clip"]]
    cells += [
        f"{case[k]['min']:.1f} ({case[k]['median']:.1f})" for k in ("ours_ms", "reference_ms")
    ]
    cells.append(f"{case['ratio_of_minima']:.2f}")
    cells.append(" / ".join(f"{value:.2f}" for value in case["ratio"].values()))
    cells.append("-" if case["inside"] else f"{case['ratio_with_check']['median']:.2f}")
    cells.append(f"{case['multiple_of_two_reads']['median']:.1f}")
    differing = case["kept_by_one_side_only"]
    cells.append("equal" if not differing else f"{differing} of {case['kept']} differ")
    return cells


if __name__ == "__main__":
    main()
