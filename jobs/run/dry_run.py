"""`--dry-run`: estimate what a job needs without starting it."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch
from rich.console import Console

from jobs.config.recipe import Job
from jobs.estimate.memory import (
    ActorMemory,
    Questions,
    encoder_memory,
    language_memory,
    refusal,
    room_of,
)
from jobs.estimate.sizes import CellTokens, Counts, count, expect_tokens, feature_bytes
from jobs.estimate.table import Estimate, render
from jobs.estimate.timing import Rates, first_answers, rates_of, stage_seconds, time_job
from jobs.run.build import GENERATED, build
from jobs.run.driver import execute
from jobs.run.job_facts import Kind
from jobs.run.locations import Locations
from jobs.run.placement import earlier_rates, executor_of
from jobs.run.planning import make_plan, make_settings
from jobs.run.run_dirs import new_run_dir
from pipeline.cache.folders import existing_caches
from pipeline.clips import Pools, stages_of
from pipeline.plan import Plan
from pipeline.resources.cgroups import num_cpus
from pipeline.resources.devices import placed
from pipeline.resources.pools import ActorPool
from pipeline.resources.sizing import UNMEASURED, Work, suggest_pools
from pipeline.settings import Settings
from tango_core.errors import UserError
from tango_core.models import load_encoder, load_language_model
from tango_core.models.base import ModelSpec, VisionEncoder
from tango_core.models.language.engine import LayoutAndEngine, NativeEngine
from tango_core.models.placement import bytes_of, modules_of

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
    folders = existing_caches(storage, plan.caches)
    cells = expect_tokens(plan, language, rates.cells, folders)
    seconds = stage_seconds(counts, cells, rates)
    choice = executor_of(job, locations.address, counts.clips)
    assert choice is not None  # the clips have been counted
    on_ray = choice.executor == "ray"
    nodes = _nodes(locations.address if on_ray else None)
    gpus = job.model.device != "cpu"
    pools = job.pools if not isinstance(job.pools, str) else Pools()
    if on_ray and isinstance(job.pools, str):  # the GPUs of a pool do not depend on its memory
        pools = suggest_pools(nodes, _work(plan, counts, seconds, {}, gpus))
    settings = make_settings(job, locations.address, choice.executor, pools)
    questions = _questions(job, plan, cells, counts)
    memory = _memory(plan, settings, encoder, language, questions, encodes=counts.to_encode > 0)
    suggested = suggest_pools(nodes, _work(plan, counts, seconds, memory, gpus))
    own = suggested if isinstance(job.pools, str) else job.pools
    num_cpus = sum(node.get("CPU", 0) for node in nodes)
    timings = [
        time_job(
            seconds,
            pools if on_ray else None,
            num_cpus,
            start_s=rates.start_s,
            price_per_hour=how.price_per_hour,
        )
        for pools in (own, suggested)
    ]
    return Estimate(
        model=plan.model.name,
        counts=counts,
        cells=cells,
        memory=memory,
        rates=rates,
        executor=choice.executor,
        nodes=nodes,
        timing=timings[0],
        pools=suggested,
        suggested=timings[1] if on_ray else None,
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
    encodes: bool,
) -> dict[str, ActorMemory]:
    """Stage -> estimated memory of one of its actors, for stages where it is known."""
    on_ray = settings.executor == "ray"
    engine = language.engine if language is not None else None
    model = engine.model if isinstance(engine, NativeEngine) else None
    modules = {
        "compress": [] if encoder is None else modules_of(encoder),
        "answer": [] if model is None else [model],
    }
    # With the local executor both halves of the model are in one process.
    beside = dict.fromkeys(modules, 0.0)
    if not on_ray and encodes and plan.answer:
        beside = {"compress": bytes_of(modules["answer"]), "answer": bytes_of(modules["compress"])}
    found: dict[str, ActorMemory] = {}
    for stage, half in modules.items():
        device = placed(plan.model, settings, stage).device
        pool: ActorPool = getattr(settings.pools, stage) if on_ray else ActorPool()
        room = room_of(device, pool, beside[stage])
        if stage == "compress" and encoder is not None:
            found[stage] = encoder_memory(encoder, device, room)
        elif stage == "answer" and plan.answer:
            found[stage] = language_memory(model, plan.model, questions, device, room)
        if on_ray and room is not None and stage in found:
            refused = refusal(stage, pool, room, found[stage].weights, half)
            found[stage] = replace(found[stage], refused=refused)
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


def _work(
    plan: Plan,
    counts: Counts,
    seconds: dict[str, float | None],
    memory: dict[str, ActorMemory],
    gpus: bool,
) -> Work:
    """Describe the job's work per stage, from which pool sizes are suggested."""
    names = [stage.name for stage in stages_of(plan)]
    measured_ = {name: value for name in names if (value := seconds.get(name)) is not None}
    if len(measured_) < len([name for name in names if name in seconds]):
        measured_ = {name: UNMEASURED[name] * counts.clips for name in names}
    return Work(
        seconds={name: measured_.get(name, 0.0) for name in names},
        num_clips=counts.clips,
        actor_bytes={name: one.total for name, one in memory.items()},
        gpus=gpus,
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
