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
import yaml
from rich.console import Console

from jobs.config.recipe import Job
from jobs.estimate.memory import ActorMemory, encoder_memory, language_memory
from jobs.estimate.work import (
    CellTokens,
    Counts,
    Rates,
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
from pipeline.clips import Pools
from pipeline.plan import Plan
from pipeline.resources.cgroups import num_cpus
from pipeline.resources.devices import placed
from pipeline.settings import Settings
from pipeline.sizing import suggest_pools
from tango_core.errors import UserError
from tango_core.models import load_encoder, load_language_model
from tango_core.models.base import ModelSpec, VisionEncoder
from tango_core.models.language.engine import LayoutAndEngine, NativeEngine
from tango_core.models.onednn import advice

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
        print(json.dumps(estimates[0] if len(estimates) == 1 else estimates, indent=2))
    else:
        for one in estimates:
            text = "\n".join(["", *filter(None, (one["model"], one["advice"])), render(one)])
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def estimate_job(job: Job, kind: Kind, locations: Locations, how: DryRun) -> dict[str, Any]:
    """Estimate the time and memory that a job needs, as plain data.

    Times are in seconds, sizes in bytes; `None` stands for what is not known.

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

    def time(pools: Pools | None) -> dict[str, Any]:
        return time_job(seconds, pools, num_cpus, price_per_hour=how.price_per_hour)

    return {
        "model": plan.model.name,
        "advice": advice(plan.model),
        "counts": asdict(counts),
        "prompt_tokens": round(sum(one.prompt * counts.questions for one in cells)),
        "cache_bytes": round(total_bytes(cells, counts.missing)),
        "feature_bytes": round(feature_bytes(plan, encoder)),
        "methods": [asdict(one) for one in cells],
        "actor_bytes": {name: {**asdict(one), "total": one.total} for name, one in memory.items()},
        "measured_in": list(rates.runs),
        "executor": choice.executor,
        "nodes": [dict(node) for node in nodes],
        "time": time(own if on_ray else None),
        "suggested": {"pools": asdict(suggested), "time": time(suggested) if on_ray else None},
    }


def _probe(job: Job, locations: Locations) -> Rates:
    """Measure the first clips now, in a temporary directory."""
    limit = min(PROBE_CLIPS, job.limit) if isinstance(job.limit, int) else PROBE_CLIPS
    small = replace(
        job, limit=limit, shard=None, executor="local", mode="throughput", pools=Pools()
    )
    with tempfile.TemporaryDirectory(prefix="tango-probe-") as folder:
        where = Locations(Path(folder), open_storage=locations.open_storage)
        built = build(_generating_in(small, folder))
        names = [name for name, _ in built.methods]
        run_dir = new_run_dir(small, where.output, methods=names)
        done = execute(small, built, "sweep", where, run_dir, Console(quiet=True))
        found = rates_of("", first_answers(locations.open_storage(run_dir)))
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
    questions: Mapping[str, Any],
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
        found["answer"] = language_memory(model, plan.model, device, **questions)
    return found


def _questions(job: Job, plan: Plan, cells: Sequence[CellTokens], counts: Counts) -> dict[str, Any]:
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


def render(estimate: Mapping[str, Any]) -> str:
    """Format an estimate for a terminal."""
    return "\n".join(_lines(estimate))


def _lines(estimate: Mapping[str, Any]) -> Iterator[str]:
    counts = estimate["counts"]
    clips = [f"{counts['to_encode']} to encode", f"{counts['cached']} cached"]
    if counts["from_features"]:
        clips.append(f"{counts['from_features']} of these from stored features")
    if counts["without_file"]:
        clips.append(f"{counts['without_file']} without a file")
    yield f"clips:    {counts['clips']} ({', '.join(clips)})"
    yield f"answers:  {counts['answers']} ({counts['questions']} questions)"
    yield f"tokens:   {estimate['prompt_tokens']:,} in prompts"
    features = human_bytes(estimate["feature_bytes"])
    beside = f", and {features} of features" if estimate["feature_bytes"] else ""
    yield f"cache:    {human_bytes(estimate['cache_bytes'])} to write{beside}"
    for name, parts in estimate["actor_bytes"].items():
        words = {"weights": "weights", "activations": "activations", "kv": "keys and values"}
        sizes = [f"{words[part]} {human_bytes(parts[part])}" for part in words if parts[part]]
        yield f"memory:   {human_bytes(parts['total'])} per {name} actor ({', '.join(sizes)})"
    yield ""
    head = ("method", "tokens kept", "of", "prompt", "longest", "a clip", "to write")
    rows = []
    for cell in estimate["methods"]:
        numbers = [f"{cell[name]:.0f}" for name in ("total", "prompt", "longest")]
        number = counts["missing"][cell["cache"]]
        sizes = [human_bytes(cell["clip_bytes"] * times) for times in (1, number)]
        rows.append((cell["name"], f"{cell['kept']:.1f}", *numbers, *sizes))
    yield from Table(head, rows).plain(right=set(head[1:]))
    yield ""
    timing, on_ray = estimate["time"], estimate["executor"] == "ray"
    if timing["unknown"]:
        stages = ", ".join(timing["unknown"])
        yield (
            f"time:     not known: no earlier run measured {stages} with this model, frames and "
            "device; add --probe to measure ten clips now"
        )
    else:
        for stage in timing["stages"]:
            mark = "  <- the slowest" if stage["name"] == timing["bottleneck"] else ""
            time = f"{human_age(stage['wall_s'])} in {stage['workers']:g} worker(s)"
            yield f"{stage['name'] + ':':<9} {time}{mark}"
        how = f"{'on Ray' if on_ray else 'in a loop'}, from {', '.join(estimate['measured_in'])}"
        yield f"time:     {human_age(timing['wall_s'])} {how}"
        if timing["cost"] is not None:
            yield f"cost:     {timing['cost']:.2f}"
    if on_ray:
        gain, suggested = estimate["suggested"]["time"], estimate["suggested"]["pools"]
        pools = {
            name: {key: value for key, value in pool.items() if value}
            for name, pool in suggested.items()
        }
        after = "" if gain["wall_s"] is None else f" ({human_age(gain['wall_s'])})"
        written = yaml.safe_dump(pools, default_flow_style=True, width=10_000, sort_keys=False)
        yield f"pools:    {written.strip()}{after}; `pools: auto` uses such"
