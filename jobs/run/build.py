"""Build the benchmarks, the model description and the methods that a recipe names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.config.methods import raise_if_wrong_methods
from jobs.config.recipe import Job, RecipeError
from jobs.config.sections import BenchmarkSection
from jobs.results.facts import SkippedMethod
from jobs.run.placement import device_of
from pipeline.methods import raise_if_not_served
from pipeline.storage.mirror import Mirror, mirrored
from pipeline.storage.urls import Url, place
from tango_core.benchmarks import Benchmark, build_benchmark
from tango_core.compressors import Method, build_method
from tango_core.errors import InputError, UserError
from tango_core.extensions import short_name
from tango_core.models import ModelSpec, describe_model, harness_settings, model_entry
from tango_core.models.checkpoints.directory import raise_if_damaged
from tango_core.models.options import EngineName
from tango_core.video import FrameSpec

logger = logging.getLogger(__name__)

# Name of the benchmark that generates its videos.
GENERATED = "shapes"
GIB = 2**30


@dataclass(frozen=True)
class BuiltJob:
    """Benchmarks, model description and methods of a recipe; no weights are loaded.

    Attributes:
        model: The Video LLM.
        benchmarks: Benchmark name -> benchmark.
        methods: (name, method) pairs.
        skipped: Methods that the model has too few layers for.
        mirrors: Benchmark name -> local copy of its annotations, for roots in an object store.
    """

    model: ModelSpec
    benchmarks: dict[str, Benchmark]
    methods: tuple[tuple[str, Method], ...]
    skipped: tuple[SkippedMethod, ...] = ()
    mirrors: Mapping[str, Mirror] = field(default_factory=dict)


def build(job: Job, address: str | None = None, source: str = "") -> BuiltJob:
    """Build the benchmarks, model description and methods of a recipe.

    Args:
        job: The recipe.
        address: Ray cluster that will run it; queried only if the model's dtype depends on it.
        source: The recipe's file, for messages.

    Raises:
        RecipeError: If a name does not exist or a setting is invalid; the one-line message names
            the setting.
    """
    try:
        raise_if_wrong_methods(job.all_methods)  # first, because this check is cheap
        mirrors = {
            section.name: mirror
            for section in job.all_benchmarks
            if (mirror := mirror_of(section, job.decode.video_cache)) is not None
        }
        benchmarks = {
            section.name: benchmark_of(section, mirrors.get(section.name))
            for section in job.all_benchmarks
        }
        wording = model_entry(job.model.name).load_family().wording
        for benchmark in benchmarks.values():
            benchmark.ask_family(wording)
        model = model_of(job, address)
        raise_if_too_many_frames(model.frames, job.decode.memory_gib)
        raise_if_damaged(model.path)
        built, skipped = methods_of(job, model)
        for name, method in built:
            raise_if_not_served(name, method, model)
            raise_if_not_on_engine(name, method, job.engine)
    except (UserError, OSError) as error:
        prefix = f"{source}: " if source else ""
        raise RecipeError(f"{prefix}{' '.join(str(error).split())}") from error
    if len(benchmarks) != len(job.all_benchmarks):
        raise RecipeError("benchmarks: a name is listed twice; remove one")
    return BuiltJob(model, benchmarks, built, skipped, mirrors)


def _absolute(source: str | None) -> str | None:
    """Absolute path of a local directory, for workers in another directory; else unchanged."""
    return str(Path(source).absolute()) if source and Path(source).is_dir() else source


def model_of(job: Job, address: str | None = None) -> ModelSpec:
    """Describe the model; options missing in the recipe are those of the protocol's harness."""
    section = job.model
    chosen = {**section.options, "sinks": section.sinks, "sampling": section.sampling}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    return describe_model(
        section.name,
        _absolute(section.path),
        num_frames=section.num_frames,
        dtype=section.dtype,
        device=device_of(job, address),
        decoder=job.decode.decoder,
        revision=section.revision,
        saliency_from=_absolute(section.saliency_from),
        encode_batch=section.encode_batch,
        compile=section.compile,
        engine=job.engine,
        **{**_of_harness(job, chosen), **chosen},
    )


def raise_if_too_many_frames(frames: FrameSpec, memory_gib: float) -> None:
    """Refuse a number of frames whose pixels alone exceed the decoder's memory limit.

    Args:
        frames: Frame settings of the model.
        memory_gib: `decode.memory_gib` of the recipe.

    Raises:
        InputError: If they exceed it; the message names both settings.
    """
    most = frames.most_frames(memory_gib * GIB)
    if most is not None and frames.num_frames > most:
        needed = frames.num_frames * frames.least_frame_bytes() / GIB
        raise InputError(
            f"model.num_frames {frames.num_frames}: the frames of a clip take {needed:,.1f} GiB or "
            f"more, and decode.memory_gib is {memory_gib:g}; set model.num_frames to {most} or "
            "less, or raise decode.memory_gib"
        )


def _of_harness(job: Job, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Model options that the recipe does not set, as the benchmarks' harness sets them.

    Raises:
        InputError: If the harnesses of the benchmarks differ in them, because a job encodes every
            clip only once.
    """
    found = {
        section.protocol: {
            name: value
            for name, value in harness_settings(job.model.name, section.protocol).items()
            if name not in chosen
        }
        for section in job.all_benchmarks
    }
    first, *others = found.values()
    if any(other != first for other in others):
        names = sorted({f"model.{name}" for settings in found.values() for name in settings})
        raise InputError(
            f"protocols {' and '.join(found)} use different frames with model {job.model.name}; "
            f"run their benchmarks separately, or set {' and '.join(names)} for all of them"
        )
    return first


def methods_of(
    job: Job, model: ModelSpec
) -> tuple[tuple[tuple[str, Method], ...], tuple[SkippedMethod, ...]]:
    """Build the methods for the model's number of layers; warn about those that are skipped.

    Options and retentions have been checked before, so only the number of layers can be wrong here.

    Raises:
        InputError: If a method cannot run on the model and may not be skipped, or if none can.
    """
    built: list[tuple[str, Method]] = []
    skipped: list[SkippedMethod] = []
    num_layers = model.llm.num_layers
    for name, options in job.all_methods:
        try:
            method = build_method(num_layers=num_layers, model=model.name, **options)
            built.append((name, method))
        except InputError as error:
            if job.infeasible == "error":
                raise InputError(
                    f"method {name!r}: {error}; or set infeasible to skip to leave the method out"
                ) from error
            retention = options.get("retention", 1.0)
            skipped.append(SkippedMethod(name, short_name(options["name"]), retention, str(error)))
    if not built:
        raise InputError(
            f"model {model.name} can run no method of the recipe; {skipped[0].name!r}: "
            f"{skipped[0].reason}"
        )
    for entry in skipped:
        logger.warning(
            "method %s at retention %g is skipped on model %s: %s",
            repr(entry.name),
            entry.retention,
            model.name,
            entry.reason,
        )
    return tuple(built), tuple(skipped)


def raise_if_not_on_engine(name: str, method: Method, engine: EngineName) -> None:
    """Refuse a method that only the engine `native` can run.

    Raises:
        InputError: If it prunes inside the language model, or leaves gaps in the positions.
    """
    if engine == "native":
        return
    if method.pruner is not None:
        why = "prunes inside the language model"
    elif method.compressor.positions == "original":
        why = "keeps the positions of the full sequence"
    else:
        return
    raise InputError(f"method {name!r} {why}, which engine {engine} cannot; set engine to native")


def mirror_of(section: BenchmarkSection, folder: str) -> Mirror | None:
    """The local copy of a benchmark's annotations; `None` if its root is not in an object store.

    Args:
        section: The benchmark's section of the recipe.
        folder: Directory for downloaded files.

    Raises:
        InputError: If the benchmark generates its files, which needs a disk.
    """
    root = place(section.root) if section.root else None
    if not isinstance(root, Url):
        return None
    if section.name == GENERATED:
        raise InputError(
            f"benchmark.root {root}: {section.name} generates its videos, which needs a "
            "directory on a disk; name one, or leave benchmark.root out"
        )
    return mirrored(root, Path(folder))


def benchmark_of(section: BenchmarkSection, mirror: Mirror | None = None) -> Benchmark:
    """Open one benchmark, through its local copy if it is in an object store."""
    root = section.root
    if root is not None:
        root = str(mirror.root if mirror else place(root))
    return build_benchmark(
        section.name,
        root=root,
        split=section.split,
        seed=section.seed,
        protocol=section.protocol,
        subtitles=section.subtitles,
    )
