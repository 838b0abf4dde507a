"""Measure speed against references: one table of ratios, each with its limit.

    OMP_NUM_THREADS=1 python tests/perf/bench.py [--only TEXT ...] [--seconds S]
    OMP_NUM_THREADS=1 python tests/perf/bench.py --times [--only TEXT ...] [--seconds S]

method    Every method that has a plain transcription of its publication (`references`), on clips of
          32 x 196 x 3584: a compressor on a clip, a pruner on a prompt with all tokens of it.
model     Encoding and prefill of published width and few layers, in both dtypes, against the stock
          modules of transformers in float32.
pipeline  `pipeline_cases`: what sharing and overlapping save.

Both sides of a method or model take turns, so that a busy machine slows both; a ratio is that of
processor times, and its median counts. The exit code is 1 if a ratio misses its limit. The table
goes to tests/perf/results/bench.md unless `--only` leaves some out. `--times` prints the smallest
time of our side of methods and models as JSON, for `compare.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import LlavaOnevisionForConditionalGeneration

sys.path.insert(0, str(Path(__file__).parent))

import reference_tango
from cases import (
    build_pruner,
    cut_model,
    make_context,
    make_features,
    pruner_names,
    save_cut_checkpoint,
)
from references import COMPRESSORS, PRUNERS

from tango_core.compressors import build_method
from tango_core.compressors.base import LayerContext
from tango_core.models import load_encoder, load_language_model
from tango_core.types import CompressedVideo, Prompt, VideoFrames, VisualFeatures

RETENTION, KEY_DIM = 0.1, 72
# Our side takes at most this share of the time of a method's reference.
METHOD_LIMIT = "<= 1.3"
# Of the stock modules in float32, where oneDNN is used (`tango_core.models.kernels`).
MODEL_LIMITS = {"float32": "<= 0.75", "bfloat16": "<= 0.45"}
LEAST_REPEATS, MOST_REPEATS = 3, 15

Case = tuple[str, str, Callable[[], object], Callable[[], object]]


def main() -> int:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="*", default=[""], help="texts in the names of rows")
    parser.add_argument("--seconds", type=float, default=1.5, help="for a row")
    parser.add_argument("--times", action="store_true", help="print times of our side as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[tuple[str, list[float], str]] = []
    with TemporaryDirectory(prefix="tango-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        stack.enter_context(torch.no_grad())
        times: dict[str, float] = {}
        for case, limit, ours, reference in (*method_cases(), *model_cases(folder / "cut")):
            if not any(text in case for text in options.only):
                continue
            own, ratios = in_turns(ours, None if options.times else reference, options.seconds)
            times[case] = own
            rows.append((case, ratios, limit))
            print(f"{case}: {own:.1f} ms, {ratios}", file=sys.stderr, flush=True)
        if options.times:
            print(json.dumps(times))
            return 0
        # Imported here because `compare.py` runs the rows above with older packages, too.
        from pipeline_cases import PARTS

        for part, (limit, run) in PARTS.items():
            if any(text in f"pipeline {part}" for text in options.only):
                cut = cut_model(save_cut_checkpoint(folder / "cut"))
                rows += [
                    (f"pipeline {part}: {case}", figures, limit)
                    for case, figures in run(folder / "clips", cut)
                ]
    text = table(rows)
    print(text)
    if options.only == [""]:
        (Path(__file__).parent / "results" / "bench.md").write_text(text)
    return int(not all(is_met(statistics.median(figures), limit) for _, figures, limit in rows))


def method_cases() -> Iterator[Case]:
    """Every method with a reference, on clips with scenes and on noise."""
    for kind in ("scenes", "noise"):
        features = _with_signals(make_features(kind))
        prompt = make_context(features)
        for name in ("tango", *COMPRESSORS, *PRUNERS):
            runs = _pruner if name in pruner_names() else _compressor
            subject: Any = prompt if name in pruner_names() else features
            yield f"method {name}, {kind}", METHOD_LIMIT, *runs(name, subject)


def _with_signals(features: VisualFeatures) -> VisualFeatures:
    """The clip with every signal that some method reads."""
    generator = torch.Generator().manual_seed(1)
    keys = torch.randn(*features.tokens.shape[:2], KEY_DIM, generator=generator)
    return replace(
        features,
        attention=features.saliency,
        keys=keys,
        frame_embeddings=features.tokens.mean(dim=1),
    )


def _compressor(
    name: str, features: VisualFeatures
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Our compressor and its reference."""
    options = {} if name in ("full", "block") else {"retention": RETENTION}
    compressor: Any = build_method(name, **options).compressor
    if name == "tango":
        tau = compressor.resolved_tau
        reference = partial(reference_tango.compress, features, RETENTION, tau)
    else:
        reference = partial(COMPRESSORS[name], features, RETENTION)
    return partial(compressor.compress, features), reference


def _pruner(name: str, prompt: LayerContext) -> tuple[Callable[[], object], Callable[[], object]]:
    """One step of our pruner and of its reference; earlier layers have run."""
    pruner, layers, share = build_pruner(name, RETENTION)
    scratch: dict[str, Any] = {}
    *before, context = (replace(prompt, layer=layer, scratch=scratch) for layer in layers)
    for earlier in before:
        pruner.prune(earlier)
        PRUNERS[name](earlier, share)
    remembered = dict(scratch)

    def ours() -> object:
        scratch.clear()
        scratch.update(remembered)
        return pruner.prune(context)

    return ours, partial(PRUNERS[name], context, share)


def model_cases(folder: Path) -> Iterator[Case]:
    """Both halves of a model of published width and few layers (`save_cut_checkpoint`)."""
    path = str(save_cut_checkpoint(folder))
    stock: Any = LlavaOnevisionForConditionalGeneration.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 384, 384, 3), dtype=np.uint8)
    frames = VideoFrames(pixels, np.arange(4.0))
    inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1
    tower, language = stock.model.vision_tower, stock.model.language_model
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(32 * 196, language.config.hidden_size, generator=generator)
    clip = CompressedVideo(
        tokens, torch.arange(len(tokens)), (32, 14, 14), torch.arange(32, dtype=torch.float64)
    )
    for dtype, limit in MODEL_LIMITS.items():
        options: Any = {"dtype": dtype, "device": "cpu", "num_frames": 4}
        encoder = load_encoder("llava-onevision-7b", path, **options)
        yield (
            f"model encode, {dtype}",
            limit,
            partial(encoder.encode, frames),
            partial(tower, inputs),
        )
        model = load_language_model("llava-onevision-7b", path, **{**options, "num_frames": 32})
        ours = partial(model.answer, clip, [Prompt("", "w1")], max_new_tokens=1)
        yield f"model prefill, {dtype}", limit, ours, partial(language, inputs_embeds=tokens[None])


def in_turns(
    ours: Callable[[], object], reference: Callable[[], object] | None, seconds: float
) -> tuple[float, list[float]]:
    """Smallest processor milliseconds of our side, and its ratios to the reference."""
    own, ratios = [], []
    for side in filter(None, (ours, reference)):
        side()
    begun = time.perf_counter()
    while len(own) < LEAST_REPEATS or (
        len(own) < MOST_REPEATS and time.perf_counter() - begun < seconds
    ):
        own.append(_milliseconds(ours))
        if reference is not None:
            ratios.append(own[-1] / _milliseconds(reference))
    return min(own), ratios


def _milliseconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return (time.process_time() - start) * 1e3


def is_met(value: float, limit: str) -> bool:
    """Whether a figure is on the right side of a limit such as "<= 1.1"."""
    sign, bound = limit.split()
    return value >= float(bound) if sign == ">=" else value <= float(bound)


def about_machine() -> dict[str, Any]:
    """What the numbers depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "device": names[0] if names else platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load average": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).date().isoformat(),
    }


def table(rows: list[tuple[str, list[float], str]]) -> str:
    """All rows as Markdown."""
    lines = [
        "# Ratios and their limits",
        "",
        ", ".join(f"{k} {v}" for k, v in about_machine().items()),
        "",
    ]
    lines += ["| row | smallest | median | largest | limit | |", "|---|---|---|---|---|---|"]
    for name, figures, limit in rows:
        middle = statistics.median(figures)
        shown = " | ".join(f"{one:.2f}" for one in (min(figures), middle, max(figures)))
        lines.append(
            f"| {name} | {shown} | {limit} | {'' if is_met(middle, limit) else 'MISSED'} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
