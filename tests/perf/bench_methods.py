"""Time every method that compresses before the language model, beside two reads of its input.

    OMP_NUM_THREADS=1 python tests/perf/bench_methods.py [--threads N] [--repeats N]

There is no second implementation of the other methods to compare with, as `reference_tango` is for
Tango; the ratio to two reads says how far a method is from being bound by memory.
Results go to tests/perf/results/methods_<threads>threads.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from compress_cases import make_features
from timing import machine, timed

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Compressor

RETENTION = 0.1
KINDS = ("scenes", "noise")


def main() -> None:
    """Time all methods on two kinds of clips and write a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.device, options.dtype = "cpu", "float32"
    names = [name for name, method in METHODS.items() if issubclass(method, Compressor)]
    lines = [
        f"# Methods at retention {RETENTION}, 32 x 196 x 3584",
        "",
        ", ".join(f"{key} {value}" for key, value in machine(options).items()),
        "",
        "Milliseconds of wall time, minimum; in brackets as a multiple of two reads of the tokens.",
        "",
        "| method | " + " | ".join(KINDS) + " |",
        "|---" * (1 + len(KINDS)) + "|",
    ]
    columns = [measure(kind, names, options.repeats) for kind in KINDS]
    lines += [
        f"| {name} | " + " | ".join(column[name] for column in columns) + " |" for name in names
    ]
    text = "\n".join(lines) + "\n"
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"methods_{options.threads}threads.md").write_text(text)
    print(text)


def measure(kind: str, names: list[str], repeats: int) -> dict[str, str]:
    """Cells of the table for one kind of clip."""
    features = make_features(kind)
    generator = torch.Generator().manual_seed(1)
    features = replace(
        features,
        attention=features.saliency,
        keys=torch.randn(*features.tokens.shape[:2], 72, generator=generator),
        frame_embeddings=features.tokens.mean(dim=1),
    )

    def best(run: Callable[[], object]) -> float:
        return min(timed(run, "cpu")[0] for _ in range(repeats + 1))

    reads = best(lambda: (features.tokens.sum(), features.tokens.sum()))
    cells = {}
    for name in names:
        options = {} if name == "full" else {"retention": RETENTION}
        compressor = build_method(name, **options).compressor
        spent = best(lambda compressor=compressor: compressor.compress(features))
        cells[name] = f"{spent:.1f} ({spent / reads:.1f})"
    return cells


if __name__ == "__main__":
    main()
