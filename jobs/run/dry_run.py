"""`--dry-run`: estimate what a job needs without starting it, as a table or as JSON."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from rich.console import Console

from jobs.config.recipe import Job
from jobs.estimate import work
from jobs.estimate.memory import ActorMemory, encoder_memory, language_memory
from jobs.run.build import GENERATED, build, earlier_rates, executor_of, make_plan, make_settings
from jobs.run.driver import execute
from jobs.run.locations import Locations
from jobs.run.outcome import Kind
from jobs.run.run_dirs import new_run_dir
from jobs.units import human_age, human_bytes
from pipeline.clips import Pools
from pipeline.executors.cluster import connected
from pipeline.plan import Plan
from pipeline.resources.cgroups import num_cpus
from pipeline.resources.pools import placed
from pipeline.settings import suggest_pools
from tango_core.errors import UserError
from tango_core.models import load_encoder, load_language_model
from tango_core.models.base import ModelSpec, VisionEncoder
from tango_core.models.language.engine import LayoutAndEngine, NativeEngine
from tango_core.models.onednn import advice

logger = logging.getLogger(__name__)

PROBE_CLIPS = 10


def estimate_job(
    job: Job,
    kind: Kind,
    locations: Locations,
    *,
    probe: bool = False,
    price_per_hour: float | None = None,
) -> dict[str, Any]:
    """Estimate the time and memory that a job needs, as plain data.

    Times are in seconds, sizes in bytes; `None` stands for what is not known.

    Args:
        job: The recipe.
        kind: The command.
        locations: Where it would read and write, and where earlier runs are.
        probe: Whether to measure ten clips now, in this process.
        price_per_hour: Price of all nodes together, in any currency.
    """
    built = build(job, locations.address)
    storage = locations.open_storage(locations.cache_root)
    plan = make_plan(job, built, storage, answer=kind != "precompute", generate=False)
    counts = work.count(plan)
    rates = _probe(job, locations) if probe else earlier_rates(plan, locations.output)
    encoder, language = _halves(plan.model)
    cells = work.expect_tokens(plan, language)
    seconds = work.stage_seconds(counts, cells, rates, answers=counts.answers > 0)
    choice = executor_of(job, locations.address, counts.clips)
    assert choice is not None  # the clips have been counted
    on_ray = choice.executor == "ray"
    nodes = _nodes(locations.address if on_ray else None)
    cpus = sum(node.get("CPU", 0) for node in nodes)
    gpus = job.model.device != "cpu"

    def suggest(memory: Mapping[str, ActorMemory]) -> Pools:
        return suggest_pools(nodes, work.work_of(plan, counts, seconds, memory, gpus=gpus))

    def time(pools: Pools | None) -> dict[str, Any]:
        return work.time_job(seconds, pools, cpus, price_per_hour=price_per_hour)

    # The GPUs of a suggested pool do not depend on the memory of its actors.
    pools = suggest({}) if isinstance(job.pools, str) else job.pools
    settings = make_settings(job, locations.address, choice.executor, pools)
    memory: dict[str, ActorMemory] = {}
    if encoder is not None:
        device = placed(plan.model, settings, "compress").device
        memory["compress"] = encoder_memory(encoder, device)
    if plan.answer:
        engine = language.engine if language is not None else None
        model = engine.model if isinstance(engine, NativeEngine) else None
        device = placed(plan.model, settings, "answer").device
        questions = _questions(job, plan, cells, counts)
        memory["answer"] = language_memory(model, plan.model, device, **questions)
    suggested = suggest(memory)
    own = suggested if isinstance(job.pools, str) else job.pools
    return {
        "model": plan.model.name,
        "advice": advice(plan.model),
        "counts": asdict(counts),
        "prompt_tokens": round(sum(one.prompt * counts.questions for one in cells)),
        "cache_bytes": round(work.total_bytes(cells, counts.missing)),
        "feature_bytes": round(work.feature_bytes(plan, encoder)),
        "methods": [asdict(one) for one in cells],
        "actor_bytes": {name: {**asdict(one), "total": one.total} for name, one in memory.items()},
        "measured_in": list(rates.runs),
        "executor": choice.executor,
        "nodes": [dict(node) for node in nodes],
        "time": time(own if on_ray else None),
        "suggested": {"pools": asdict(suggested), "time": time(suggested) if on_ray else None},
    }


def _probe(job: Job, locations: Locations) -> work.Rates:
    """Measure the first clips now, in a temporary directory."""
    limit = min(PROBE_CLIPS, job.limit) if isinstance(job.limit, int) else PROBE_CLIPS
    small = replace(
        job, limit=limit, shard=None, executor="local", mode="throughput", pools=Pools()
    )
    with tempfile.TemporaryDirectory(prefix="tango-probe-") as folder:
        sections = [
            replace(one, root=folder) if one.name == GENERATED else one
            for one in small.all_benchmarks
        ]
        small = replace(small, benchmark=None, benchmarks=tuple(sections))
        where = Locations(Path(folder), open_storage=locations.open_storage)
        built = build(small)
        run_dir = new_run_dir(small, where.output)
        done = execute(small, built, "sweep", where, run_dir, Console(quiet=True))
        found = work.rates_of("", work.first_answers(locations.open_storage(run_dir)))
    return replace(found, runs=(f"a probe of {done.num_clips} clips",))


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


def _questions(
    job: Job, plan: Plan, cells: Sequence[work.CellTokens], counts: work.Counts
) -> dict[str, Any]:
    """Describe the questions of an answer actor as arguments of `language_memory`."""
    alone = job.mode == "profile"
    shares = not alone and any(one.method.pruner is None for one in plan.methods)
    num_clips = max(1, counts.clips - counts.without_file)
    batch_tokens = job.answer.batch_tokens
    return {
        "longest": max((one.longest for one in cells), default=0),
        "reply": max((one.max_new_tokens for one in plan.protocols.values()), default=16),
        "together": max(1, -(-counts.questions // num_clips)) if shares else 1,
        "prompts": max(1, counts.answers),
        "batch_tokens": 1 if alone else None if batch_tokens == "auto" else batch_tokens,
    }


def _nodes(address: str | None) -> list[dict[str, float]]:
    """Resources of the cluster at an address, or of this machine."""
    if address is not None:
        with connected(address) as nodes:
            return nodes
    memory = 0.7 * psutil.virtual_memory().total  # Ray's default share for workers
    return [{"CPU": float(num_cpus()), "GPU": float(torch.cuda.device_count()), "memory": memory}]


_PARTS = {"weights": "weights", "activations": "activations", "kv": "keys and values"}


def lines(estimate: Mapping[str, Any]) -> Iterator[str]:
    """Format an estimate for a terminal, in lines."""
    yield from filter(None, (estimate["model"], estimate["advice"]))
    counts, features = estimate["counts"], estimate["feature_bytes"]
    yield (
        f"clips:    {counts['clips']} ({counts['to_encode']} to encode, {counts['cached']} cached, "
        f"{counts['from_features']} from stored features, {counts['without_file']} without a file)"
    )
    yield f"answers:  {counts['answers']} ({counts['questions']} questions)"
    yield f"tokens:   {estimate['prompt_tokens']:,} in prompts"
    beside = f", and {human_bytes(features)} of features" if features else ""
    yield f"cache:    {human_bytes(estimate['cache_bytes'])} to write{beside}"
    for name, parts in estimate["actor_bytes"].items():
        sizes = [f"{_PARTS[part]} {human_bytes(parts[part])}" for part in _PARTS if parts[part]]
        yield f"memory:   {human_bytes(parts['total'])} per {name} actor ({', '.join(sizes)})"
    timing = estimate["time"]
    if timing["unknown"]:
        unknown = ", ".join(timing["unknown"])
        yield (
            f"time:     not known: no earlier run measured {unknown} with this model, frames and "
            "device; add --probe to measure ten clips now"
        )
    else:
        for stage in timing["stages"]:
            time = f"{human_age(stage['wall_s'])} in {stage['workers']:g} worker(s)"
            yield f"{stage['name'] + ':':<9} {time}"
        how = f"{estimate['executor']}, from {', '.join(estimate['measured_in'])}"
        yield f"time:     {human_age(timing['wall_s'])} ({how}); slowest: {timing['bottleneck']}"
        if timing["cost"] is not None:
            yield f"cost:     {timing['cost']:.2f}"
    if estimate["executor"] == "ray":
        pools = {
            name: {key: value for key, value in pool.items() if value}
            for name, pool in estimate["suggested"]["pools"].items()
        }
        written = yaml.safe_dump(pools, default_flow_style=True, width=10_000, sort_keys=False)
        yield f"pools:    {written.strip()}; `pools: auto` uses such"
