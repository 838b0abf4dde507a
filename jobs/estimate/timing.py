"""Time of every stage from measured rates, the slowest of them, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.estimate.counts import Counts
from jobs.estimate.rates import Rates
from jobs.estimate.tokens import CellTokens
from pipeline.resources.pools import ActorPool, Pools

# Start of a Ray with its workers and their models on two cores, as pipeline/README.md has it.
RAY_START_S = 15.0


@dataclass(frozen=True)
class StageTime:
    """One stage of a job.

    Attributes:
        name: Of the stage.
        busy_s: Seconds of work in one worker.
        workers: Workers that share it.
    """

    name: str
    busy_s: float
    workers: float

    @property
    def wall_s(self) -> float:
        """Seconds on the clock if it waits for nothing."""
        return self.busy_s / self.workers


@dataclass(frozen=True)
class Timing:
    """When a job will be done.

    Attributes:
        stages: Those whose rate is known.
        wall_s: Seconds from start to end; `None` if the rate of a stage is not known.
        bottleneck: The stage that takes longest; `None` if a rate is missing.
        unknown: Stages without a measured rate.
        cost: In the currency of the price; `None` without a price.
    """

    stages: tuple[StageTime, ...]
    wall_s: float | None
    bottleneck: str | None
    unknown: tuple[str, ...]
    cost: float | None


def stage_seconds(
    counts: Counts, cells: Sequence[CellTokens], rates: Rates
) -> dict[str, float | None]:
    """Busy seconds of every stage that has something to do; `None` where no rate is known.

    A method that was never measured takes as long to answer as the measured ones did per token of
    their prompts, and no longer to compress than the slowest of them.
    """
    found: dict[str, float | None] = {}
    if counts.to_encode:
        found["decode"] = _times(rates.decode_s, counts.to_encode)
    if counts.to_encode or counts.from_features:
        found["compress"] = _compress(counts, cells, rates)
    if counts.answers:
        found["answer"] = _answer(counts, cells, rates)
    return found


def time_job(
    seconds: Mapping[str, float | None],
    pools: Pools | None,
    num_cpus: float,
    *,
    start_s: float | None = None,
    price_per_hour: float | None = None,
) -> Timing:
    """Turn busy seconds into time on the clock.

    Args:
        seconds: From `stage_seconds`.
        pools: Workers on Ray, where stages overlap as far as there are CPUs; `None` for a loop,
            where the next clip is decoded while one is in work, and all else adds up.
        num_cpus: CPUs of all nodes together.
        start_s: What a loop takes apart from the clips; `None` if it was not measured.
        price_per_hour: Of all nodes together.
    """
    known = {name: value for name, value in seconds.items() if value is not None}
    unknown = tuple(name for name in seconds if name not in known)
    stages = tuple(
        StageTime(name, value, _workers(name, pools, num_cpus)) for name, value in known.items()
    )
    wall: float | None = None
    if not unknown:
        if pools is None:
            decode = sum(stage.busy_s for stage in stages if stage.name == "decode")
            others = sum(stage.busy_s for stage in stages) - decode
            wall = loop_s(decode, others, num_cpus) + (start_s or 0.0)
        else:
            alone = max((stage.wall_s for stage in stages), default=0.0)
            wall = max(alone, _on_cpus_s(stages, pools, num_cpus)) + RAY_START_S
    slowest = max(stages, key=lambda stage: stage.wall_s, default=None)
    return Timing(
        stages=stages,
        wall_s=wall,
        bottleneck=slowest.name if slowest is not None and not unknown else None,
        unknown=unknown,
        cost=None if wall is None or price_per_hour is None else wall / 3600 * price_per_hour,
    )


def loop_s(decode: float, others: float, num_cpus: float) -> float:
    """Seconds of a loop, which decodes in a process of its own beside everything else.

    Args:
        decode: Busy seconds of decoding.
        others: Busy seconds of the other stages.
        num_cpus: CPUs of the machine.
    """
    return max(decode, others) if num_cpus >= 2 else decode + others


def _on_cpus_s(stages: Sequence[StageTime], pools: Pools, num_cpus: float) -> float:
    """Seconds that the CPUs need for all that runs on them, however many workers share them.

    Actors reserve no CPU unless the recipe says so, and take turns on those there are.
    """
    busy = [
        stage.busy_s
        for stage in stages
        if stage.name == "decode" or not getattr(pools, stage.name).num_gpus
    ]
    return sum(busy) / max(1.0, num_cpus)


def _times(each: float | None, number: int) -> float | None:
    """`None` stays unknown."""
    return None if each is None else each * number


def _compress(counts: Counts, cells: Sequence[CellTokens], rates: Rates) -> float | None:
    """Encoder once per clip without stored features, compressors once per clip their caches lack.

    To read stored features takes little beside them.
    """
    encode_s = _times(rates.encode_s, counts.to_encode) if counts.to_encode else 0.0
    if encode_s is None:
        return None
    known = {
        name: one.compress_s for name, one in rates.cells.items() if one.compress_s is not None
    }
    slowest = max(known.values(), default=0.0)
    caches = {one.cache: known.get(one.name, slowest) for one in cells}
    each = sum(seconds * counts.missing[cache] for cache, seconds in caches.items())
    return encode_s + each


def _answer(counts: Counts, cells: Sequence[CellTokens], rates: Rates) -> float | None:
    """All questions of all clips with every method."""
    known = [one for one in rates.cells.values() if one.prompt_tokens > 0]
    if not known:
        return None
    per_token = sum(one.answer_s for one in known) / sum(one.prompt_tokens for one in known)
    num_clips = counts.clips - counts.without_file
    return sum(
        num_clips
        * (rates.cells[one.name].answer_s if one.name in rates.cells else per_token * one.prompt)
        for one in cells
    )


def _workers(name: str, pools: Pools | None, num_cpus: float) -> float:
    """Workers of a stage; decode tasks run on the CPUs that the actors leave."""
    if pools is None:
        return 1
    if name != "decode":
        pool = getattr(pools, name)
        assert isinstance(pool, ActorPool)
        return pool.most
    reserved = sum(pool.most * pool.num_cpus for pool in (pools.compress, pools.answer))
    return max(1, math.floor((num_cpus - reserved) / pools.decode.num_cpus))
