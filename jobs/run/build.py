"""Build what a recipe names, choose executor, device and pools, and plan the clips of a job."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import tee
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from jobs.config.recipe import Job, RecipeError
from jobs.config.sections import BenchmarkSection
from jobs.results.facts import ShardSize, SkippedMethod
from pipeline.cache.features import open_store
from pipeline.clips import Pools
from pipeline.plan import Plan, Sources, plan_clips, plan_methods, raise_if_not_served
from pipeline.progress.answers import Continued
from pipeline.redaction import all_redacted
from pipeline.resources.pools import reserves_gpus
from pipeline.settings import Choice, Executor, Settings, choose
from pipeline.storage import Storage
from pipeline.storage.copies import Mirror, VideoCache, mirrored
from pipeline.storage.urls import Url, place
from tango_core.benchmarks import Benchmark, build_benchmark
from tango_core.benchmarks.base import in_one_line
from tango_core.compressors import Method, build_method
from tango_core.errors import InputError, UserError
from tango_core.extensions import short_name
from tango_core.models import Device, ModelSpec, describe_model, harness_settings, model_entry
from tango_core.models.checkpoints.directory import raise_if_damaged
from tango_core.models.options import EngineName
from tango_core.printable import printable_item
from tango_core.types import VideoItem

logger = logging.getLogger(__name__)

GENERATED = "shapes"
"""Name of the benchmark that generates its videos."""


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


def build(job: Job, address: str | None = None) -> BuiltJob:
    """Build the benchmarks, model description and methods of a recipe.

    Args:
        job: The recipe.
        address: Ray cluster that will run it; queried only if the model's dtype depends on it.

    Raises:
        UserError: If a name does not exist or a setting is invalid; the message names the setting.
    """
    benchmarks, mirrors = dict[str, Benchmark](), dict[str, Mirror]()
    wording = model_entry(job.model.name).load_family().wording
    for section in job.all_benchmarks:
        benchmark, mirror = open_benchmark(section, job.decode.video_cache)
        benchmark.ask_family(wording)
        benchmarks[section.name] = benchmark
        if mirror is not None:
            mirrors[section.name] = mirror
    model = model_of(job, address)
    raise_if_damaged(model.path)
    methods, skipped = methods_of(job, model)
    for name, method in methods:
        raise_if_not_served(name, method, model)
        raise_if_not_on_engine(name, method, job.engine)
    return BuiltJob(model, benchmarks, methods, skipped, mirrors)


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
        engine=job.engine,
        **{**_of_harness(job, chosen), **chosen},
    )


def _of_harness(job: Job, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Model options that the recipe does not set, as the benchmarks' harness sets them.

    Raises:
        InputError: If the harnesses of the benchmarks differ in them, because a job encodes every
            clip only once.
    """
    protocols = dict.fromkeys(section.protocol for section in job.all_benchmarks)
    settings = [harness_settings(job.model.name, protocol).items() for protocol in protocols]
    found = [{key: value for key, value in one if key not in chosen} for one in settings]
    if any(other != found[0] for other in found):
        names = sorted({f"model.{name}" for one in found for name in one})
        raise InputError(
            f"protocols {' and '.join(protocols)} use different frames with model "
            f"{job.model.name}; run their benchmarks separately, or set {' and '.join(names)} for "
            "all of them"
        )
    return found[0]


def methods_of(
    job: Job, model: ModelSpec
) -> tuple[tuple[tuple[str, Method], ...], tuple[SkippedMethod, ...]]:
    """Build the methods for the model's number of layers; warn about those that are skipped.

    Raises:
        InputError: If an option is wrong, if a method cannot run on the model and may not be
            skipped, or if none can.
    """
    built: list[tuple[str, Method]] = []
    skipped: list[SkippedMethod] = []
    llm = model.llm
    fixed: dict[str, Any] = {"num_layers": llm.num_layers, "full_layers": llm.full_layers}
    for name, options in job.all_methods:
        try:
            if fixed.keys() & options.keys():
                raise InputError(f"it has no options {', '.join(fixed)}, which the model sets")
            build_method(**options)
        except UserError as error:  # a mistake is no reason to skip the method
            raise InputError(f"method {name!r}: {error}") from error
        try:
            built.append((name, build_method(model=model.name, **fixed, **options)))
        except InputError as error:
            if job.infeasible == "error":
                raise InputError(
                    f"method {name!r}: {error}; or set infeasible to skip to leave the method out"
                ) from error
            retention = options.get("retention", 1.0)
            skipped.append(SkippedMethod(name, short_name(options["name"]), retention, str(error)))
            what = f"method {name!r} at retention {retention:g}"
            logger.warning("%s is skipped on model %s: %s", what, model.name, error)
    if not built:
        raise InputError(f"model {model.name} can run no method of the recipe")
    return tuple(built), tuple(skipped)


def raise_if_not_on_engine(name: str, method: Method, engine: EngineName) -> None:
    """Refuse a method that only the engine `native` can run.

    Raises:
        InputError: If it prunes inside the language model, or leaves gaps in the positions.
    """
    if engine != "native" and (method.pruner or method.compressor.positions == "original"):
        raise InputError(
            f"method {name!r} prunes inside the language model or leaves gaps in the positions, "
            f"which engine {engine} cannot; set engine to native"
        )


def open_benchmark(section: BenchmarkSection, folder: str) -> tuple[Benchmark, Mirror | None]:
    """Open a benchmark; with a root in an object store also a local copy of its annotations.

    Args:
        section: The benchmark's section of the recipe.
        folder: Directory for downloaded files.

    Raises:
        InputError: If files are missing or invalid.
    """
    root = place(section.root) if section.root else None
    mirror = mirrored(root, Path(folder)) if isinstance(root, Url) else None
    where = mirror.root if mirror else root
    benchmark = build_benchmark(
        section.name,
        root=str(where) if where else None,
        split=section.split,
        seed=section.seed,
        protocol=section.protocol,
        subtitles=section.subtitles,
    )
    return benchmark, mirror


def executor_of(job: Job, address: str | None, num_clips: int | None = None) -> Choice | None:
    """Choose the executor with a reason; `None` if the choice needs the unknown number of clips.

    Args:
        job: The recipe.
        address: Address of a Ray cluster; `None` to start Ray on this machine.
        num_clips: Number of clips to process; `None` before they have been counted.
    """
    if num_clips is None and isinstance(job.limit, int):
        num_clips = job.limit * len(job.all_benchmarks)
    return choose(
        job.executor,
        num_clips=num_clips,
        address=address,
        pools=None if isinstance(job.pools, str) else job.pools,
        profile=job.mode == "profile",
        unused_gpu=lambda: _has_unused_gpu(job),
    )


def _has_unused_gpu(job: Job) -> bool:
    """Whether this process sees a GPU, the model may use it, and no pool reserves any."""
    if job.model.device == "cpu" or isinstance(job.pools, str) or reserves_gpus(job.pools):
        return False
    import torch  # slow import, needed only if the job may use a GPU

    return torch.cuda.is_available()


def device_of(job: Job, address: str | None = None) -> Device:
    """The device for which the model is described; `auto` for the devices of this process.

    With explicit `pools` it is CUDA if any half of the model reserves a GPU, because both halves
    have the same dtype. This depends only on the recipe, so that all commands share their caches.
    With `pools: auto` it depends on the cluster at the address.

    Raises:
        ClusterError: If the cluster must be queried and cannot be reached.
    """
    configured = job.model.device
    if configured != "auto":
        return configured
    choice = executor_of(job, address)
    executor = choice and choice.executor
    if executor == "local" or (job.pools == "auto" and address is None):
        return "auto"
    if isinstance(job.pools, str):
        from pipeline.executors.cluster import connected

        with connected(address, job.cluster.start_timeout_s) as nodes:
            return "cuda" if any(node.get("GPU", 0) > 0 for node in nodes) else "cpu"
    if reserves_gpus(job.pools):
        return "cuda"
    return "cpu" if executor == "ray" else "auto"


def device_name(wanted: str) -> str:
    """Name of the GPU or the CPU architecture."""
    import torch

    if wanted != "cpu" and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{platform.machine()} CPU"


def make_plan(
    job: Job,
    built: BuiltJob,
    cache_root: str | Storage,
    *,
    answer: bool,
    continued: Continued | None = None,
    count: ShardCount | None = None,
    generate: bool = True,
) -> Plan:
    """List the clips and look them up in the caches.

    Args:
        job: The recipe.
        built: From `build`.
        cache_root: Directory or URL of the caches.
        answer: Whether questions are answered; if not, only caches are filled.
        continued: See `plan_clips`.
        count: Counts the clips of all shards.
        generate: Whether a benchmark that generates videos may write them now; if not, missing
            videos are planned as clips that are in no cache.

    Raises:
        UserError: If the benchmark's files are missing or its annotations are malformed.
    """
    profile = job.mode == "profile"
    sources = Sources(tuple(built.mirrors.values()), videos_of(job))
    generated = {one.generated_in for one in built.benchmarks.values()}

    def identify(path: str, hash_content: bool) -> str:
        try:
            return sources(path, hash_content)
        except FileNotFoundError:
            if generate or Path(path).parent not in generated:
                raise
            return f"not generated: {path}"  # matches no cache entry

    try:
        features = None
        if not profile:
            features = open_store(
                cache_root,
                built.model,
                job.cache.features,
                job.cache.feature_dtype,
                needs=frozenset(name for _, one in built.methods for name in one.compressor.needs),
                fill=not answer,
            )
        methods, compressors, caches = plan_methods(
            built.methods, built.model, cache_root, features.cache if features else None
        )
        clips = plan_clips(
            items_of(job, built, count, generate=generate),
            caches,
            hash_content=job.hash_content,
            continued=continued,
            recompute=profile,
            identify=identify,
            features=features,
            compressors=compressors,
        )
    except (UserError, OSError) as error:
        raise RecipeError(" ".join(str(error).split())) from error
    named = f"benchmark.name {', '.join(built.benchmarks)}"
    if answer and clips.num_rows and pc.all(pc.equal(clips["questions"], "[]")).as_py():
        raise InputError(
            f"{named}: no clip has a question; add a questions.csv or questions.jsonl, or only "
            "fill the cache with `tango precompute`"
        )
    if clips.num_rows == 0 and not continued and job.shard is None:
        raise InputError(f"{named}: no clips found; check benchmark.root")
    return Plan(
        model=built.model,
        methods=methods,
        compressors=compressors,
        caches=caches,
        protocols={name: bench.protocol for name, bench in built.benchmarks.items()},
        clips=clips,
        answer=answer,
        features=features,
    )


def items_of(
    job: Job, built: BuiltJob, count: ShardCount | None = None, *, generate: bool = True
) -> Iterator[tuple[str, VideoItem]]:
    """All clips of the job: those of its shard among the first `limit` of every benchmark.

    Args:
        job: The recipe.
        built: The job's benchmarks, model and methods.
        count: Counts the clips of all shards.
        generate: Whether a benchmark that generates videos may write them now.
    """
    count = count or ShardCount(job.shard)
    for name, benchmark in built.benchmarks.items():
        mirror = built.mirrors.get(name)
        items = benchmark.items if generate else benchmark.expected_items
        with in_one_line(name, type(benchmark)):
            shown, ids = tee(map(printable_item, count.own(items(job.clips_of(benchmark)))))
            for item, video_id in zip(shown, all_redacted(i.video_id for i in ids), strict=True):
                path = mirror.url_of(item.path) if mirror else item.path
                if (path, video_id) != (item.path, item.video_id):
                    item = replace(item, path=path, video_id=video_id)
                yield name, item


def videos_of(job: Job) -> VideoCache:
    """The cache in which each node keeps downloaded videos."""
    return VideoCache(job.decode.video_cache, job.decode.video_cache_gib)


def make_settings(job: Job, address: str | None, executor: Executor, pools: Pools) -> Settings:
    """Settings of the executor; in profile mode clips are serial and share no prefix."""
    profile = job.mode == "profile"
    return Settings(
        executor=executor,
        address=address,
        pools=pools,
        device=job.model.device,
        start_timeout_s=job.cluster.start_timeout_s,
        lost_timeout_s=job.cluster.lost_timeout_s,
        decode_timeout_s=job.decode.timeout_s,
        decode_memory_gib=job.decode.memory_gib,
        keep_damaged=job.decode.damaged == "keep",
        videos=videos_of(job),
        share_prefix=not profile,
        batch_tokens=None if job.answer.batch_tokens == "auto" else job.answer.batch_tokens,
        profile=profile,
    )


class ShardCount:
    """Selects the clips of a shard, and counts the clips of all shards.

    Args:
        shard: `i/n`, or `None` for the whole job.
    """

    def __init__(self, shard: str | None) -> None:
        self._index, self._number = map(int, (shard or "0/1").split("/"))
        self._clips = [0] * self._number
        self._questions = [0] * self._number

    def own(self, items: Iterable[VideoItem]) -> Iterator[VideoItem]:
        """Every n-th clip of a benchmark, from the i-th."""
        for position, item in enumerate(items):
            self._clips[position % self._number] += 1
            self._questions[position % self._number] += len(item.questions)
            if position % self._number == self._index:
                yield item

    @property
    def num_questions(self) -> int:
        """Questions of this shard, once all clips have been listed."""
        return self._questions[self._index]

    def sizes(self) -> tuple[ShardSize, ...]:
        """Sizes of all shards once all clips have been listed; empty for an unsharded job."""
        sizes = map(ShardSize, self._clips, self._questions)
        return tuple(sizes) if self._number > 1 else ()
