"""`--dry-run`: estimate what a job needs without starting it, as a table or as JSON."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from rich.console import Console
from torch import nn

from jobs.config.recipe import Job
from jobs.estimate import work
from jobs.run.build import GENERATED, build, device_name, executor_of, make_plan, make_settings
from jobs.run.driver import Kind, execute
from jobs.run.locations import Locations
from jobs.run.run_dirs import new_run_dir
from jobs.units import human_age, human_bytes
from pipeline.clips import Pools
from pipeline.executors.cluster import connected
from pipeline.resources.pools import num_cpus, placed
from pipeline.settings import suggest_pools
from tango_core.errors import UserError
from tango_core.models import load_encoder, load_language_model
from tango_core.models.base import ModelSpec, VisionEncoder
from tango_core.models.kernels import advice
from tango_core.models.language import batching
from tango_core.models.language.engine import LayoutAndEngine, NativeEngine
from tango_core.models.placement import bytes_of, modules_of
from tango_core.models.towers.encoder import largest_batch

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
    rates = (
        _probe(job, locations)
        if probe
        else work.measured(locations.output, plan.model, device_name(plan.model.device))
    )
    encoder, language = _halves(plan.model)
    cells = work.expect_tokens(plan, language)
    seconds = work.stage_seconds(counts, cells, rates, answers=counts.answers > 0)
    choice = executor_of(job, locations.address, counts.clips)
    assert choice is not None  # the clips have been counted
    on_ray = choice.executor == "ray"
    nodes = [
        {
            "CPU": float(num_cpus()),
            "GPU": float(torch.cuda.device_count()),
            "memory": 0.7 * psutil.virtual_memory().total,  # Ray's default share for workers
        }
    ]
    if on_ray and locations.address is not None:
        with connected(locations.address) as found:
            nodes = list(found)
    gpus = job.model.device != "cpu"
    # The GPUs of a suggested pool do not depend on the memory of its actors.
    suggested = suggest_pools(nodes, work.work_of(plan, counts, seconds, gpus=gpus))
    own = None if isinstance(job.pools, str) else job.pools
    settings = make_settings(job, locations.address, choice.executor, own or suggested)
    memory: dict[str, ActorMemory] = {}
    if encoder is not None:
        device = placed(plan.model, settings, "compress").device
        memory["compress"] = encoder_memory(encoder, device)
    if plan.answer:
        engine = language.engine if language is not None else None
        alone = job.mode == "profile"
        shares = not alone and any(one.method.pruner is None for one in plan.methods)
        num_clips = max(1, counts.clips - counts.without_file)
        memory["answer"] = language_memory(
            engine.model if isinstance(engine, NativeEngine) else None,
            plan.model,
            placed(plan.model, settings, "answer").device,
            longest=max((one.longest for one in cells), default=0),
            reply=max((one.max_new_tokens for one in plan.protocols.values()), default=16),
            together=max(1, -(-counts.questions // num_clips)) if shares else 1,
            prompts=max(1, counts.answers),
            batch_tokens=1 if alone else settings.batch_tokens,
        )
    actor_bytes = {name: one.total for name, one in memory.items()}
    suggested = suggest_pools(nodes, work.work_of(plan, counts, seconds, actor_bytes, gpus=gpus))

    def time(pools: Pools) -> dict[str, Any]:
        cpus = sum(node.get("CPU", 0) for node in nodes)
        used = pools if on_ray else None
        return work.time_job(seconds, used, cpus, price_per_hour=price_per_hour)

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
        "time": time(own or suggested),
        "suggested": {"pools": asdict(suggested), "time": time(suggested) if on_ray else None},
    }


def _probe(job: Job, locations: Locations) -> work.Rates:
    """Measure the first clips now, in a temporary directory."""
    limit = min(PROBE_CLIPS, job.limit) if isinstance(job.limit, int) else PROBE_CLIPS
    with tempfile.TemporaryDirectory(prefix="tango-probe-") as folder:
        sections = [
            replace(one, root=folder) if one.name == GENERATED else one
            for one in job.all_benchmarks
        ]
        small = replace(
            job,
            benchmark=None,
            benchmarks=tuple(sections),
            limit=limit,
            shard=None,
            executor="local",
            mode="throughput",
            pools=Pools(),
        )
        where = Locations(Path(folder), open_storage=locations.open_storage)
        built = build(small)
        run_dir = new_run_dir(small, where.output)
        done = execute(small, built, "sweep", where, run_dir, Console(quiet=True))
        found = work.rates_of("", work.first_answers(locations.open_storage(run_dir)))
    return replace(found, runs=(f"a probe of {done.num_clips} clips",))


def _halves(spec: ModelSpec) -> tuple[VisionEncoder | None, LayoutAndEngine | None]:
    """Vision encoder and language model without weights; `None` where the checkpoint is missing."""
    try:
        encoder = load_encoder(spec, device="meta")
        language = load_language_model(spec, device="meta")
    except (OSError, UserError) as error:
        logger.warning("some numbers cannot be estimated without the checkpoint: %s", error)
        return None, None
    return encoder, language if isinstance(language, LayoutAndEngine) else None


@dataclass(frozen=True)
class ActorMemory:
    """Bytes of one actor of a stage.

    Weights are exact where the checkpoint is on this machine. Activations are the widest layer's,
    which is what the stock kernels keep at once; allocators and CUDA itself take about a gibibyte
    more. On a GPU, `answer.batch_tokens: auto` counts with its fewest tokens.

    Attributes:
        weights: Weights of the half of the model that it holds.
        activations: Intermediate results for its largest input.
        kv: Keys, values and recurrent states of all prompts in flight; 0 for an encoder.
    """

    weights: float
    activations: float
    kv: float = 0.0

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.weights + self.activations + self.kv


def encoder_memory(encoder: VisionEncoder, device: str) -> ActorMemory:
    """Estimate the memory of an actor with the vision encoder.

    Args:
        encoder: Loaded on the device `meta`.
        device: Device of the actor; `"auto"` is decided as on this machine.
    """
    modules = modules_of(encoder)
    layers = [layer for one in modules for layer in one.modules()]
    spec = encoder.spec
    frames = spec.frames
    side = max(1, int((frames.max_pixels or frames.multiple**2) ** 0.5))
    height, width = frames.size or (side, side)
    # Patches of a frame, from the convolution that cuts it.
    patches = [
        (height // layer.stride[-2]) * (width // layer.stride[-1])
        for layer in layers
        if isinstance(layer, (nn.Conv2d, nn.Conv3d)) and layer.stride[-1] >= 2
    ]
    widest = max((one.out_features for one in layers if isinstance(one, nn.Linear)), default=1)
    at_once = largest_batch(spec.encode_batch, device, frames.num_frames)
    rows = max(patches, default=1) * at_once
    itemsize = torch.empty((), dtype=getattr(torch, spec.dtype)).element_size()
    pixels = 4.0 * 3 * height * width * frames.num_frames
    # Tokens of one row are small beside the rest. Those of several rows (DeepStack) are not, and
    # are there once more while they are stored.
    rows_of_token = 1 + spec.companions if spec.companions else 0
    num_positions, grid = work.grid_of(spec)
    features = 2.0 * num_positions * grid[0] * grid[1] * rows_of_token * spec.llm.hidden_size
    return ActorMemory(bytes_of(modules), (rows * widest + features) * itemsize + pixels)


def language_memory(
    model: nn.Module | None,
    spec: ModelSpec,
    device: str,
    *,
    longest: int,
    reply: int = 16,
    together: int = 1,
    prompts: int = 1,
    batch_tokens: int | None = None,
) -> ActorMemory:
    """Estimate the memory of an actor with the language model.

    Args:
        model: On the device `meta`; `None` counts the weights from the shape alone.
        spec: From `describe_model`.
        device: Device of the actor; `"auto"` is decided as on this machine.
        longest: Tokens of the longest prompt, its reply left out.
        reply: Tokens that a reply may have.
        together: Questions about one clip that share the computation of it; 1 for none.
        prompts: Prompts of the whole job.
        batch_tokens: Tokens per batch; `None` is `auto`.
    """
    shape = spec.llm
    itemsize = torch.empty((), dtype=getattr(torch, spec.dtype)).element_size()
    if model is not None:
        weights = float(bytes_of([model]))
    else:  # a stock decoder with an untied output
        layers = sum(map(shape.weights_of, range(shape.num_layers)))
        weights = (layers + 2.0 * shape.vocab_size * shape.hidden_size) * itemsize
    per_token, per_row = shape.token_bytes(itemsize), shape.row_bytes(itemsize)
    if batch_tokens is None:
        on_gpu = device != "cpu" and (device != "auto" or torch.cuda.is_available())
        batch_tokens = batching.auto_batch_tokens(shape, itemsize, 0 if on_gpu else None)
    need = longest + reply
    held = batching.held_tokens(batch_tokens, need, together, prompts)
    at_once = held // need
    # Prompts that share a prefix compute it once; what they have of their own is short.
    passes = -(-at_once // min(together, batching.MAX_BATCH))
    return ActorMemory(
        weights=weights,
        activations=passes * longest * per_row + 4.0 * shape.vocab_size * at_once,
        kv=float(held * per_token + at_once * shape.state_bytes(itemsize)),
    )


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
