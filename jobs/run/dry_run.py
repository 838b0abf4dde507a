"""`--dry-run`: estimate what a job needs without starting it, as a table or as JSON."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console

from jobs.config.recipe import Job
from jobs.estimate.memory import (
    ActorMemory,
    Questions,
    encoder_memory,
    language_memory,
)
from jobs.estimate.work import (
    CellTokens,
    Counts,
    Rates,
    Timing,
    count,
    expect_tokens,
    feature_bytes,
    first_answers,
    rates_of,
    stage_seconds,
    time_job,
    total_bytes,
    work_of,
)
from jobs.report.formatting import Table
from jobs.run.build import GENERATED, build, earlier_rates, executor_of, make_plan, make_settings
from jobs.run.driver import execute
from jobs.run.locations import Locations
from jobs.run.outcome import Kind
from jobs.run.run_dirs import new_run_dir
from jobs.units import human_age, human_bytes
from pipeline.plan import Plan
from pipeline.resources.cgroups import num_cpus
from pipeline.resources.devices import placed
from pipeline.resources.pools import ActorPool, Pools
from pipeline.resources.sizing import suggest_pools
from pipeline.settings import Settings
from tango_core.errors import UserError
from tango_core.models import load_encoder, load_language_model
from tango_core.models.base import ModelSpec, VisionEncoder
from tango_core.models.language.engine import LayoutAndEngine, NativeEngine

logger = logging.getLogger(__name__)

PROBE_CLIPS = 10


@dataclass(frozen=True)
class DryRun:
    """Options of a dry run.

    Attributes:
        probe: Measure ten clips now, in this process.
        price_per_hour: Price of all nodes together, in any currency.
        as_json: Print only JSON.
    """

    probe: bool = False
    price_per_hour: float | None = None
    as_json: bool = False


def dry_run(
    jobs: Sequence[Job], kind: Kind, locations: Locations, console: Console, how: DryRun
) -> int:
    """Print the estimate of each job; returns exit code 0."""
    estimates = [estimate_job(job, kind, locations, how) for job in jobs]
    if how.as_json:
        plain = [one.to_json() for one in estimates]
        print(json.dumps(plain[0] if len(plain) == 1 else plain, indent=2))
    else:
        for one in estimates:
            console.print(f"\n{one.model}", markup=False, highlight=False)
            console.print(render(one), markup=False, highlight=False, soft_wrap=True)
    return 0


def estimate_job(job: Job, kind: Kind, locations: Locations, how: DryRun) -> Estimate:
    """Estimate the time and memory that a job needs.

    Args:
        job: The recipe.
        kind: The command.
        locations: Where it would read and write, and where earlier runs are.
        how: Options of the dry run.
    """
    built = build(job, locations.address, locations.recipe)
    storage = locations.open_storage(locations.cache_root)
    plan = make_plan(job, built, storage, answer=kind != "precompute", generate=False)
    counts = count(plan)
    rates = _probe(job, locations) if how.probe else earlier_rates(plan, locations.output)
    encoder, language = _halves(plan.model)
    cells = expect_tokens(plan, language)
    seconds = stage_seconds(counts, cells, rates, answers=counts.answers > 0)
    choice = executor_of(job, locations.address, counts.clips)
    assert choice is not None  # the clips have been counted
    on_ray = choice.executor == "ray"
    nodes = _nodes(locations.address if on_ray else None)
    # The GPUs of a suggested pool do not depend on the memory of its actors.
    gpus = job.model.device != "cpu"
    pools = suggest_pools(nodes, work_of(plan, counts, seconds, gpus=gpus))
    own = pools if isinstance(job.pools, str) else job.pools
    settings = make_settings(job, locations.address, choice.executor, own)
    questions = _questions(job, plan, cells, counts)
    memory = _memory(plan, settings, encoder, language, questions)
    suggested = suggest_pools(nodes, work_of(plan, counts, seconds, memory, gpus=gpus))
    own = suggested if isinstance(job.pools, str) else job.pools
    num_cpus = sum(node.get("CPU", 0) for node in nodes)

    def time(pools: Pools | None) -> Timing:
        return time_job(seconds, pools, num_cpus, price_per_hour=how.price_per_hour)

    return Estimate(
        model=plan.model.name,
        counts=counts,
        cells=cells,
        memory=memory,
        rates=rates,
        executor=choice.executor,
        nodes=nodes,
        timing=time(own if on_ray else None),
        pools=suggested,
        suggested=time(suggested) if on_ray else None,
        feature_bytes=feature_bytes(plan, encoder),
    )


def _probe(job: Job, locations: Locations) -> Rates:
    """Measure the first clips now, in a temporary directory."""
    limit = min(PROBE_CLIPS, job.limit or PROBE_CLIPS)
    small = replace(
        job, limit=limit, shard=None, executor="local", mode="throughput", pools=Pools()
    )
    with tempfile.TemporaryDirectory(prefix="tango-probe-") as folder:
        where = Locations(Path(folder), open_storage=locations.open_storage)
        built = build(_generating_in(small, folder))
        names = [name for name, _ in built.methods]
        run_dir = new_run_dir(small, where.output, methods=names)
        done = execute(small, built, "sweep", where, run_dir, Console(quiet=True))
        found = rates_of([(done.facts, first_answers(locations.open_storage(run_dir)))])
    return replace(found, runs=(f"a probe of {done.num_clips} clips",))


def _generating_in(job: Job, folder: str) -> Job:
    """Copy of a job that generates its videos in `folder`."""
    sections = [
        replace(one, root=folder) if one.name == GENERATED else one for one in job.all_benchmarks
    ]
    return replace(job, benchmark=None, benchmarks=tuple(sections))


def _halves(spec: ModelSpec) -> tuple[VisionEncoder | None, LayoutAndEngine | None]:
    """Vision encoder and language model without weights; `None` where the checkpoint is missing."""
    encoder: VisionEncoder | None = None
    language: LayoutAndEngine | None = None
    try:
        encoder = load_encoder(spec, device="meta")
        loaded = load_language_model(spec, device="meta")
        language = loaded if isinstance(loaded, LayoutAndEngine) else None
    except (OSError, UserError) as error:
        logger.warning("some numbers cannot be estimated without the checkpoint: %s", error)
    return encoder, language


def _memory(
    plan: Plan,
    settings: Settings,
    encoder: VisionEncoder | None,
    language: LayoutAndEngine | None,
    questions: Questions,
) -> dict[str, ActorMemory]:
    """Stage -> estimated memory of one of its actors, for stages where it is known."""
    found: dict[str, ActorMemory] = {}
    if encoder is not None:
        device = placed(plan.model, settings, "compress").device
        found["compress"] = encoder_memory(encoder, device)
    if plan.answer:
        engine = language.engine if language is not None else None
        model = engine.model if isinstance(engine, NativeEngine) else None
        device = placed(plan.model, settings, "answer").device
        found["answer"] = language_memory(model, plan.model, questions, device)
    return found


def _questions(job: Job, plan: Plan, cells: Sequence[CellTokens], counts: Counts) -> Questions:
    """Describe the questions of an answer actor, which determine its memory."""
    alone = job.mode == "profile"
    shares = not alone and any(one.method.pruner is None for one in plan.methods)
    num_clips = max(1, counts.clips - counts.without_file)
    batch_tokens = job.answer.batch_tokens
    return Questions(
        longest=max((one.longest for one in cells), default=0),
        reply=max((one.max_new_tokens for one in plan.protocols.values()), default=16),
        together=max(1, -(-counts.questions // num_clips)) if shares else 1,
        prompts=max(1, counts.answers),
        batch_tokens=1 if alone else None if batch_tokens == "auto" else batch_tokens,
    )


def _nodes(address: str | None) -> list[dict[str, float]]:
    """Resources of the cluster at an address, or of this machine."""
    if address is not None:
        from pipeline.executors.cluster import connected

        with connected(address) as nodes:
            return nodes
    return [
        {
            "CPU": float(num_cpus()),
            "GPU": float(torch.cuda.device_count()),
            "memory": 0.7 * psutil.virtual_memory().total,  # Ray's default share for workers
        }
    ]


@dataclass(frozen=True)
class Estimate:
    """What a job will take.

    Attributes:
        model: Its name.
        counts: Clips and questions.
        cells: Tokens and cache bytes of every method.
        memory: Stage -> memory of one of its actors, as far as it is known.
        rates: What the times are made of.
        executor: `"ray"` or `"local"`.
        nodes: What there is to run on.
        timing: With the recipe's pools, or with the suggested ones if it says `auto`.
        pools: Pools that are suggested for these nodes.
        suggested: Time with those; `None` in a loop.
        feature_bytes: Bytes that the feature store grows by.
    """

    model: str
    counts: Counts
    cells: tuple[CellTokens, ...]
    memory: Mapping[str, ActorMemory]
    rates: Rates
    executor: str
    nodes: Sequence[Mapping[str, float]]
    timing: Timing
    pools: Pools
    suggested: Timing | None
    feature_bytes: float = 0.0

    @property
    def prompt_tokens(self) -> float:
        """Tokens of all prompts of all methods."""
        return sum(one.prompt * self.counts.questions for one in self.cells)

    @property
    def cache_bytes(self) -> float:
        """Bytes that the token caches grow by."""
        return total_bytes(self.cells, self.counts.missing)

    def to_json(self) -> dict[str, Any]:
        """Plain data; times in seconds, sizes in bytes, `null` for what is not known."""
        return {
            "model": self.model,
            "counts": asdict(self.counts),
            "prompt_tokens": round(self.prompt_tokens),
            "cache_bytes": round(self.cache_bytes),
            "feature_bytes": round(self.feature_bytes),
            "methods": [asdict(one) for one in self.cells],
            "actor_bytes": {
                name: {**asdict(one), "total": one.total} for name, one in self.memory.items()
            },
            "measured_in": list(self.rates.runs),
            "executor": self.executor,
            "nodes": [dict(node) for node in self.nodes],
            "time": _timing(self.timing),
            "suggested": {
                "pools": asdict(self.pools),
                "time": None if self.suggested is None else _timing(self.suggested),
            },
        }


def render(estimate: Estimate) -> str:
    """The same for a terminal."""
    return "\n".join(_lines(estimate))


def _timing(timing: Timing) -> dict[str, Any]:
    """Plain data of one timing."""
    stages = [{**asdict(stage), "wall_s": stage.wall_s} for stage in timing.stages]
    return {**asdict(timing), "stages": stages}


def _lines(estimate: Estimate) -> Iterator[str]:
    counts = estimate.counts
    lacking = f", {counts.without_file} without a file" if counts.without_file else ""
    stored = (
        f", {counts.from_features} of these from stored features" if counts.from_features else ""
    )
    yield (
        f"clips:    {counts.clips} ({counts.to_encode} to encode, {counts.cached} cached{stored}"
        f"{lacking})"
    )
    yield f"answers:  {counts.answers} ({counts.questions} questions)"
    yield f"tokens:   {estimate.prompt_tokens:,.0f} in prompts"
    features = estimate.feature_bytes
    beside = f", and {human_bytes(features)} of features" if features else ""
    yield f"cache:    {human_bytes(estimate.cache_bytes)} to write{beside}"
    for name, one in estimate.memory.items():
        parts = {"weights": one.weights, "activations": one.activations, "keys and values": one.kv}
        words = ", ".join(f"{word} {human_bytes(size)}" for word, size in parts.items() if size)
        yield f"memory:   {human_bytes(one.total)} per {name} actor ({words})"
    yield ""
    head = ("method", "tokens kept", "of", "prompt", "longest", "a clip", "to write")
    rows = []
    for cell in estimate.cells:
        sizes = map(human_bytes, (cell.clip_bytes, cell.clip_bytes * counts.missing[cell.cache]))
        numbers = (f"{cell.total:.0f}", f"{cell.prompt:.0f}", str(cell.longest))
        rows.append((cell.name, f"{cell.kept:.1f}", *numbers, *sizes))
    yield from Table(head, rows).plain(right=set(head[1:]))
    yield ""
    yield from _times(estimate)


def _times(estimate: Estimate) -> Iterator[str]:
    timing = estimate.timing
    if timing.unknown:
        yield (
            f"time:     not known: no earlier run measured {', '.join(timing.unknown)} with this "
            "model, frames and device; add --probe to measure ten clips now"
        )
    else:
        for stage in timing.stages:
            mark = "  <- the slowest" if stage.name == timing.bottleneck else ""
            yield (
                f"{stage.name + ':':<9} {human_age(stage.wall_s)} in {stage.workers:g} "
                f"worker(s){mark}"
            )
        assert timing.wall_s is not None
        how = "on Ray" if estimate.executor == "ray" else "in a loop"
        yield f"time:     {human_age(timing.wall_s)} {how}, from {', '.join(estimate.rates.runs)}"
        if timing.cost is not None:
            yield f"cost:     {timing.cost:.2f}"
    if estimate.executor != "ray":
        return
    gain = estimate.suggested
    after = "" if gain is None or gain.wall_s is None else f" ({human_age(gain.wall_s)})"
    pools = estimate.pools  # as a recipe writes them
    actors = f"compress: {_pool(pools.compress)}, answer: {_pool(pools.answer)}"
    written = f"{{decode: {{num_cpus: {pools.decode.num_cpus:g}}}, {actors}}}"
    yield f"pools:    {written}{after}; `pools: auto` uses such"


def _pool(pool: ActorPool) -> str:
    number = f"[{pool.least}, {pool.most}]" if pool.least != pool.most else str(pool.least)
    return f"{{num_actors: {number}, num_gpus: {pool.num_gpus:g}, num_cpus: {pool.num_cpus:g}}}"
