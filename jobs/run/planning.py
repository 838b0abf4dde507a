"""Plan a job: list its clips, look them up in the caches, choose settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc

from jobs.config.recipe import Job, RecipeError
from jobs.results.facts import ShardSize
from jobs.run.build import BuiltJob
from pipeline.cache.features import open_store
from pipeline.clips import Pools
from pipeline.methods import plan_methods
from pipeline.plan import Plan, plan_clips
from pipeline.progress.resume import Continued
from pipeline.redaction import redacted
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.settings import Executor, Settings
from pipeline.sources import Sources
from pipeline.storage import Storage
from pipeline.storage.videos import VideoCache
from tango_core.benchmarks import Benchmark
from tango_core.benchmarks.base import in_one_line
from tango_core.errors import UserError
from tango_core.printable import printable_item
from tango_core.types import VideoItem


def make_plan(
    job: Job,
    built: BuiltJob,
    cache_root: str | Storage,
    *,
    answer: bool,
    continued: Continued | None = None,
    count: ShardCount | None = None,
    clock: Clock = SYSTEM_CLOCK,
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
        clock: Clock for the dates of cache entries.
        generate: Whether a benchmark that generates videos may write them now; if not, missing
            videos are planned as clips that are in no cache.

    Raises:
        RecipeError: If the benchmark's files are missing, its annotations are malformed, or the
            model does not support a method.
    """
    try:
        profile = job.mode == "profile"
        features = (
            None
            if profile
            else open_store(
                cache_root,
                built.model,
                job.cache.features,
                job.cache.feature_dtype,
                needs=frozenset[str]().union(
                    *(method.compressor.needs for _, method in built.methods)
                ),
                fill=not answer,
                clock=clock,
            )
        )
        methods, compressors, caches = plan_methods(
            built.methods, built.model, cache_root, clock, features.cache if features else None
        )
        identify = Sources(tuple(built.mirrors.values()), videos_of(job))
        clips = plan_clips(
            items_of(job, built, count, generate=generate),
            caches,
            hash_content=job.hash_content,
            continued=continued,
            recompute=profile,
            identify=identify if generate else WithoutFiles(identify, built.benchmarks.values()),
            features=features,
            compressors=compressors,
        )
    except (UserError, OSError) as error:
        raise RecipeError(" ".join(str(error).split())) from error
    if answer and clips.num_rows and pc.all(pc.equal(clips["questions"], "[]")).as_py():
        raise RecipeError(
            f"benchmark.name {', '.join(built.benchmarks)}: no clip has a question; add a "
            "questions.csv or questions.jsonl, or only fill the cache with `tango precompute`"
        )
    if clips.num_rows == 0 and not continued and job.shard is None:
        raise RecipeError(
            f"benchmark.name {', '.join(built.benchmarks)}: no clips found; check benchmark.root"
        )
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
            for item in count.own(items(job.limit)):
                shown = printable_item(item)
                path = mirror.url_of(shown.path) if mirror else shown.path
                yield name, replace(shown, path=path, video_id=redacted(shown.video_id))


class WithoutFiles:
    """Fingerprints sources; videos that a benchmark has not generated yet get one from their path.

    Args:
        identify: Fingerprints existing sources.
        benchmarks: Benchmarks of the job.
    """

    def __init__(self, identify: Sources, benchmarks: Iterable[Benchmark]) -> None:
        self._identify = identify
        self._generated_dirs = tuple(one.generated_in for one in benchmarks if one.generated_in)

    def __call__(self, path: str, hash_content: bool) -> str:
        """See `source_fingerprint`; the fingerprint of a missing video matches no cache entry."""
        try:
            return self._identify(path, hash_content)
        except FileNotFoundError:
            if Path(path).parent not in self._generated_dirs:
                raise
            return f"not generated: {path}"


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

    def sizes(self) -> tuple[ShardSize, ...]:
        """Sizes of all shards once all clips have been listed; empty for an unsharded job."""
        sizes = map(ShardSize, self._clips, self._questions)
        return tuple(sizes) if self._number > 1 else ()
