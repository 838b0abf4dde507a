"""Seconds per clip that earlier runs measured, and the time of every stage from them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from jobs.results.facts import FACTS_FILE, JobFacts
from pipeline.clips import FAILED, Pools
from pipeline.progress.parts import AnswerParts
from pipeline.resources.pools import ActorPool
from pipeline.storage import Storage
from pipeline.storage.urls import Place
from tango_core.local_files import parse_json

if TYPE_CHECKING:
    from jobs.estimate.sizes import CellTokens, Counts

logger = logging.getLogger(__name__)

# The newest runs tell the most about the machine of today.
_MOST_RUNS = 5
# Of a large run its first answers are enough for a mean.
_MOST_ROWS = 50_000
_TIMES = (
    *("decode_video_ms", "encode_ms", "compress_ms"),
    *("cache_read_ms", "prefill_ms", "decode_ms"),
)
_NUMBERS = (*_TIMES, "tokens_kept", "tokens_total", "prompt_tokens")
_CLIP = ["benchmark", "video_id"]
# Start of a Ray with its workers and their models on two cores, as pipeline/README.md has it.
RAY_START_S = 15.0


@dataclass(frozen=True)
class CellRates:
    """What was measured of one method.

    Attributes:
        compress_s: Seconds of its compressor per clip; `None` if it came from the cache.
        answer_s: Seconds of all questions of a clip, reading the cache included.
        tokens_kept: Visual tokens of a clip, mean.
        tokens_total: The same before compression.
        prompt_tokens: Tokens of a prompt, mean.
    """

    compress_s: float | None
    answer_s: float
    tokens_kept: float
    tokens_total: float
    prompt_tokens: float


@dataclass(frozen=True)
class Rates:
    """What earlier runs, or a probe, measured.

    Attributes:
        decode_s: Seconds to decode a clip; `None` if all clips came from the cache.
        encode_s: Seconds of the vision encoder per clip; likewise.
        cells: Cell name -> what was measured of it.
        runs: Names of the runs.
        start_s: Wall time of a run in a loop that no clip accounts for: imports, models, results.
    """

    decode_s: float | None = None
    encode_s: float | None = None
    cells: Mapping[str, CellRates] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    start_s: float | None = None


def measured(output: Place, *, model: str, num_frames: int, device: str) -> Rates:
    """Read the rates of the newest comparable runs under a directory.

    Args:
        output: Directory or URL of runs.
        model: Name of the model; runs of another one do not count.
        num_frames: Frames per clip.
        device: The processor in words (`jobs.run.placement.device_name`); times of another one do
            not count.

    Returns:
        Empty rates if there is no such run. Runs that cannot be read are left out.
    """
    found: list[tuple[JobFacts, pd.DataFrame]] = []
    for facts in _runs(output):
        same = facts.model == model and facts.num_frames == num_frames and facts.device == device
        # A profile shares nothing between questions and methods, so its times are others.
        if not same or facts.mode != "throughput" or facts.kind not in ("evaluate", "sweep"):
            continue
        try:
            answers = first_answers(Storage.at(str(output)).child(facts.run_id))
        except (OSError, ValueError, KeyError) as error:
            logger.warning("run %s is not used for the estimate: %s", facts.run_id, error)
            continue
        if len(answers):
            found.append((facts, answers))
        if len(found) == _MOST_RUNS:
            break
    return rates_of(found)


def _runs(output: Place) -> Iterable[JobFacts]:
    """The finished runs of a directory, the newest first; unreadable ones are skipped."""
    storage = Storage.at(str(output))
    for name in reversed(storage.folders() if storage.is_folder() else []):
        try:
            facts = JobFacts.from_json(
                parse_json(storage.child(name).read(FACTS_FILE).decode(), name)
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
        if facts.run_id == name:
            yield facts


def first_answers(run: Storage) -> pd.DataFrame:
    """The answers of a run; of a very large one, those of its first parts.

    Raises:
        DamagedFileError: If a part is damaged.
    """
    parts = AnswerParts(run.child("answers"))
    tables: list[pd.DataFrame] = []
    for name in sorted(parts.storage.names(".parquet")):
        table = parts.read(name)
        if table is not None:
            tables.append(table.to_pandas())
        if sum(map(len, tables)) >= _MOST_ROWS:
            break
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def rates_of(runs: Iterable[tuple[JobFacts, pd.DataFrame]]) -> Rates:
    """Rates of runs and their answers (`first_answers`), the newest first."""
    names: list[str] = []
    cells: dict[str, CellRates] = {}
    once: dict[str, float] = {}  # what the newest run that measured it says
    for facts, given in runs:
        names.append(facts.run_id)
        # A column without a value comes from Parquet as objects.
        answers = given.reindex(columns=list(dict.fromkeys((*given.columns, *_NUMBERS))))
        for name in _NUMBERS:
            answers[name] = pd.to_numeric(answers[name], errors="coerce")
        for cell, rows in answers[~answers["status"].isin(FAILED)].groupby("cell", sort=False):
            cells.setdefault(str(cell), _cell(rows))
        done = answers[answers["cache"] == "miss"]
        for name in ("decode_video_ms", "encode_ms"):
            values = done.dropna(subset=[name]).drop_duplicates(_CLIP)[name]
            if len(values):
                once.setdefault(name, float(values.mean()) / 1000)
        if (start_s := _unaccounted(facts, answers, done)) is not None:
            once.setdefault("start_s", start_s)
    return Rates(
        once.get("decode_video_ms"),
        once.get("encode_ms"),
        cells,
        tuple(names),
        once.get("start_s"),
    )


def _cell(rows: pd.DataFrame) -> CellRates:
    """The rates of one method's answers."""
    per_clip = rows.drop_duplicates(_CLIP)
    compress = per_clip.loc[per_clip["cache"] == "miss", "compress_ms"].mean()
    # Sums over the questions of a clip are the time spent: each carries its share.
    spent = rows[["prefill_ms", "decode_ms"]].sum().sum() + per_clip["cache_read_ms"].sum()
    return CellRates(
        compress_s=None if pd.isna(compress) else float(compress) / 1000,
        answer_s=float(spent) / 1000 / len(per_clip),
        tokens_kept=float(per_clip["tokens_kept"].mean()),
        tokens_total=float(per_clip["tokens_total"].mean()),
        prompt_tokens=float(rows["prompt_tokens"].mean()),
    )


def _unaccounted(facts: JobFacts, answers: pd.DataFrame, done: pd.DataFrame) -> float | None:
    """Wall time of a loop that no clip accounts for; `None` where more stages overlapped."""
    if facts.wall_s is None or len(answers) >= _MOST_ROWS:
        return None
    per_clip, per_cell = done.drop_duplicates(_CLIP), answers.drop_duplicates(["cell", *_CLIP])
    others = (
        per_clip["encode_ms"].sum()
        + per_cell[["compress_ms", "cache_read_ms"]].sum().sum()
        + answers[["prefill_ms", "decode_ms"]].sum().sum()
    )
    decode_s, others_s = float(per_clip["decode_video_ms"].sum()) / 1000, float(others) / 1000
    if decode_s + others_s >= facts.wall_s:
        return None
    return facts.wall_s - max(decode_s, others_s)


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
    their prompts, and no longer to compress than the slowest of them. To read stored features takes
    little beside the compressors.
    """
    found: dict[str, float | None] = {}
    encode = 0.0 if not counts.to_encode else _times(rates.encode_s, counts.to_encode)
    if counts.to_encode:
        found["decode"] = _times(rates.decode_s, counts.to_encode)
    if counts.to_encode or counts.from_features:
        known = {n: s for n, one in rates.cells.items() if (s := one.compress_s) is not None}
        slowest = max(known.values(), default=0.0)
        caches = {one.cache: known.get(one.name, slowest) for one in cells}
        each = sum(seconds * counts.missing[cache] for cache, seconds in caches.items())
        found["compress"] = None if encode is None else encode + each
    if counts.answers:
        asked = [one for one in rates.cells.values() if one.prompt_tokens > 0]
        tokens = sum(one.prompt_tokens for one in asked)
        per_token = sum(one.answer_s for one in asked) / tokens if asked else 0.0
        per_clip = sum(
            rates.cells[one.name].answer_s if one.name in rates.cells else per_token * one.prompt
            for one in cells
        )
        found["answer"] = per_clip * (counts.clips - counts.without_file) if asked else None
    return found


def _times(each: float | None, number: int) -> float | None:
    return None if each is None else each * number


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
    slowest = max(stages, key=lambda stage: stage.wall_s, default=None)
    wall: float | None = None
    if not unknown and pools is None:
        # A loop decodes in a process of its own beside everything else.
        decode, total = known.get("decode", 0.0), sum(known.values())
        wall = (max(decode, total - decode) if num_cpus >= 2 else total) + (start_s or 0.0)
    elif not unknown and pools is not None:
        # Actors reserve no CPU unless the recipe says so, and take turns on those there are.
        on_cpus = [n for n in known if n == "decode" or not getattr(pools, n).num_gpus]
        cpus_s = sum(known[name] for name in on_cpus) / max(1.0, num_cpus)
        wall = max(0.0 if slowest is None else slowest.wall_s, cpus_s) + RAY_START_S
    return Timing(
        stages=stages,
        wall_s=wall,
        bottleneck=slowest.name if slowest is not None and not unknown else None,
        unknown=unknown,
        cost=None if wall is None or price_per_hour is None else wall / 3600 * price_per_hour,
    )


def _workers(name: str, pools: Pools | None, num_cpus: float) -> float:
    """Workers of a stage; decode tasks run on the CPUs that the actors leave."""
    if pools is None:
        return 1
    if name != "decode":
        pool: ActorPool = getattr(pools, name)
        return pool.most
    reserved = sum(pool.most * pool.num_cpus for pool in (pools.compress, pools.answer))
    return max(1, math.floor((num_cpus - reserved) / pools.decode.num_cpus))
