"""The estimate of a job as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jobs.estimate.memory import ActorMemory
from jobs.estimate.sizes import CellTokens, Counts, total_bytes
from jobs.estimate.timing import Rates, Timing
from jobs.units import human_age, human_bytes
from pipeline.clips import Pools
from pipeline.resources.pools import ActorPool


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
        but = ", but" if one.room is not None and one.total > one.room else ","
        room = "" if one.room is None else f"{but} it may have {human_bytes(one.room)}"
        yield f"memory:   {human_bytes(one.total)} per {name} actor ({words}){room}"
        if one.refused is not None:
            yield f"          it will not start: {one.refused}"
    yield ""
    head = ("method", "tokens kept", "of", "prompt", "longest", "a clip", "to write", "from")
    rows: list[tuple[str, ...]] = [head]
    for cell in estimate.cells:
        sizes = map(human_bytes, (cell.clip_bytes, cell.clip_bytes * counts.missing[cell.cache]))
        numbers = (f"{cell.total:.0f}", f"{cell.prompt:.0f}", str(cell.longest))
        rows.append((cell.name, f"{cell.kept:.1f}", *numbers, *sizes, cell.source))
    yield from _aligned(rows)
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


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their longest field; the first and the last on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(
            text.ljust(width) if index in (0, len(row) - 1) else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
