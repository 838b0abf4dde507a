"""Benchmarks by name; a new one is one file and one line here."""

from __future__ import annotations

from importlib import import_module

from tango_core.benchmarks.base import Benchmark, Protocol
from tango_core.benchmarks.names import check_name

# name -> where its class is; imported when used, so that asking for one benchmark loads one.
BENCHMARKS: dict[str, str] = {
    "custom": "tango_core.benchmarks.custom.benchmark:CustomBenchmark",
    "longvideobench": "tango_core.benchmarks.longvideobench:LongVideoBenchBenchmark",
    "mlvu": "tango_core.benchmarks.mlvu:MLVUBenchmark",
    "mvbench": "tango_core.benchmarks.mvbench:MVBenchBenchmark",
    "shapes": "tango_core.benchmarks.shapes.benchmark:ShapesBenchmark",
    "videomme": "tango_core.benchmarks.videomme:VideoMMEBenchmark",
}

__all__ = ["BENCHMARKS", "Benchmark", "Protocol", "build_benchmark"]


def build_benchmark(
    name: str,
    *,
    root: str | None = None,
    split: str = "test",
    seed: int = 0,
    protocol: str = "vlmevalkit",
) -> Benchmark:
    """Build a benchmark from the recipe's `benchmark` section.

    Args:
        name: One of `BENCHMARKS`.
        root: Where its files are; `None` for the benchmark's own default, if it has one.
        split: One of the benchmark's splits.
        seed: Which draw of a generated benchmark; data that exist once ignore it.
        protocol: `"vlmevalkit"` or `"lmms_eval"`: whose prompts and reading rules are used.

    Raises:
        ValueError: If a name is unknown or `root` is missing or of the wrong kind, in one line.
        FileNotFoundError: If `root` does not exist.
    """
    check_name("benchmark.name", name, BENCHMARKS)
    module, attribute = BENCHMARKS[name].split(":")
    benchmark: Benchmark = getattr(import_module(module), attribute)(
        root=root, split=split, seed=seed, protocol=protocol
    )
    return benchmark
