"""Benchmarks by name: clips with questions, and protocols that render and score them.

A benchmark is one class, which states everything about it: its files and columns, its prompts,
scores and exports per harness. Public ones are in `public`, those with one kind of task or rule in
one module; what they share is in `annotated.py`, `tables.py`, `releases.py`, `protocols` and
`scoring`. Nothing here may import a model, a method, torch, `pipeline` or `jobs`. A new benchmark
is one module and one line in `BENCHMARKS`; see README.md.
"""

from __future__ import annotations

from importlib import import_module

from tango_core.benchmarks.base import Benchmark, Protocol, in_one_line
from tango_core.errors import InputError
from tango_core.extensions import load_extension

_PUBLIC = "tango_core.benchmarks.public"
# Module and class of every benchmark, imported on first use.
BENCHMARKS: dict[str, str] = {
    "activitynet_captions": f"{_PUBLIC}.temporal_grounding:ActivityNetBenchmark",
    "charades_sta": f"{_PUBLIC}.temporal_grounding:CharadesSTABenchmark",
    "custom": "tango_core.benchmarks.custom:CustomBenchmark",
    "egoschema": f"{_PUBLIC}.mmmu_style:EgoSchemaBenchmark",
    "longvideobench": f"{_PUBLIC}.longvideobench:LongVideoBenchBenchmark",
    "lvbench": f"{_PUBLIC}.one_letter:LVBenchBenchmark",
    "mlvu": f"{_PUBLIC}.mlvu:MLVUBenchmark",
    "motionbench": f"{_PUBLIC}.one_letter:MotionBenchBenchmark",
    "mvbench": f"{_PUBLIC}.mvbench:MVBenchBenchmark",
    "nextqa": f"{_PUBLIC}.mmmu_style:NExTQABenchmark",
    "nextqa_oe": f"{_PUBLIC}.mmmu_style:NExTQAOpenBenchmark",
    "perceptiontest": f"{_PUBLIC}.one_letter:PerceptionTestBenchmark",
    "shapes": "tango_core.benchmarks.shapes.benchmark:ShapesBenchmark",
    "tempcompass": f"{_PUBLIC}.tempcompass:TempCompassBenchmark",
    "tomato": f"{_PUBLIC}.mmmu_style:TOMATOBenchmark",
    "tvbench": f"{_PUBLIC}.one_letter:TVBenchBenchmark",
    "videomme": f"{_PUBLIC}.videomme:VideoMMEBenchmark",
    "videomme_v2": f"{_PUBLIC}.videomme:VideoMMEV2Benchmark",
}

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Protocol",
    "benchmark_class",
    "build_benchmark",
    "facts_of",
]


def benchmark_class(name: str) -> type[Benchmark]:
    """Find a benchmark's class, whose attributes describe it completely.

    Args:
        name: One of `BENCHMARKS`, an entry point of the group `tango_video.benchmarks`, or
            `my_package.my_module:MyBenchmark`.

    Raises:
        ValueError: If there is no such benchmark, or it is not a `Benchmark`.
    """
    if name in BENCHMARKS:
        module, attribute = BENCHMARKS[name].split(":")
        found = getattr(import_module(module), attribute)
    else:
        found = load_extension("benchmark", "benchmark.name", name, BENCHMARKS)
    if not (isinstance(found, type) and issubclass(found, Benchmark)):
        raise InputError(
            f"benchmark.name {name!r} must name a class derived from "
            f"tango_core.benchmarks.Benchmark, got {found!r}"
        )
    return found


def facts_of(name: str) -> type[Benchmark]:
    """`benchmark_class` for reports; an unknown name gives the base class without facts."""
    try:
        return benchmark_class(name)
    except ValueError:
        return Benchmark


def build_benchmark(
    name: str,
    *,
    root: str | None = None,
    split: str = "test",
    seed: int = 0,
    protocol: str = "vlmevalkit",
    subtitles: bool = False,
) -> Benchmark:
    """Build a benchmark from the recipe's `benchmark` section.

    Args:
        name: One of `BENCHMARKS`, an entry point of the group `tango_video.benchmarks`, or
            `my_package.my_module:MyBenchmark`.
        root: Folder of its files; `None` for the benchmark's default, if it has one.
        split: One of the benchmark's splits.
        seed: Seed of a generated benchmark; other benchmarks ignore it.
        protocol: One of the benchmark's `protocols`: rules for prompts and for reading replies.
        subtitles: Whether prompts include the subtitles of the videos.

    Raises:
        ValueError: If a name is unknown, or `root` is missing or invalid.
        FileNotFoundError: If `root` does not exist.
    """
    found = benchmark_class(name)
    found.check_subtitles(subtitles, protocol)
    with in_one_line(name, found):
        benchmark = found(root=root, split=split, seed=seed, protocol=protocol)
    # Results are recorded under this name, and reports look its class up by it again.
    benchmark.name = name
    if subtitles:
        benchmark.show_subtitles()
    return benchmark
