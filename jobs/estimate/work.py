"""Work and time of a job: clips, tokens and bytes of a plan, measured rates, and time per stage.

The number of tokens that a compressor keeps may depend on the clip, so every compressor runs on a
synthetic clip of the model's size. Its count is exact for methods with a fixed budget, and an
approximation for the others.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from jobs.results.facts import FACTS_FILE, JobFacts
from pipeline.cache.derived import serves
from pipeline.cache.names import TOKENS, signals_parts
from pipeline.cache.rows import WRITE_OPTIONS, ClipIdentity, Entry, to_table
from pipeline.clips import DECODE_VIDEO, FAILED, Pools, questions_of, stages_of, subtitles_of
from pipeline.plan import Plan
from pipeline.progress.parts import AnswerParts
from pipeline.question_groups import groups_of
from pipeline.resources.pools import ActorPool
from pipeline.rows import clips_in
from pipeline.settings import UNMEASURED, Work
from pipeline.storage import Storage
from pipeline.storage.urls import Place
from tango_core.benchmarks.protocols.subtitles import Watched, cues_of_srt
from tango_core.compressors.contract.inputs import make_clip
from tango_core.local_files import parse_json
from tango_core.models.base import ModelSpec, VisionEncoder
from tango_core.types import CompressedVideo, Prompt

if TYPE_CHECKING:
    from tango_core.models.language.engine import LayoutAndEngine  # loads transformers

logger = logging.getLogger(__name__)

# Number of clips whose questions are tokenised, which is enough for a mean length.
_MOST_CLIPS = 10_000
# Width of the synthetic clip's tokens; the number of kept tokens does not depend on it.
_WIDTH = 32
# Size of a file of features without its tensors.
_FILE_BYTES = 7_400
# SigLIP's width of one head and of all, for use without a checkpoint. The signal `keys` is the mean
# over heads, so it has the width of one head.
_HEAD_WIDTH, _VISION_WIDTH = 72, 1152
# The first answers of a large run are enough for a mean.
_MOST_ROWS = 50_000
_NUMBERS = [
    *("decode_video_ms", "encode_ms", "compress_ms"),
    *("cache_read_ms", "prefill_ms", "decode_ms", "prompt_tokens"),
]
_CLIP_NAME = ["benchmark", "video_id"]
_CELL_RATES = ["compress_s", "answer_s", "prompt_tokens"]
# Start-up times measured on two cores (pipeline/README.md). Ray: start of Ray, workers and models.
# Executor `local`, a loop in this process: imports, models, and writing of the results.
RAY_START_S, LOOP_START_S = 15.0, 8.0


@dataclass(frozen=True)
class Counts:
    """Numbers of clips, questions and token sets of a plan.

    Attributes:
        clips: All clips.
        without_file: Clips whose file is missing; they fail at once.
        to_encode: Clips that are decoded and encoded: some cache lacks them, and the feature store
            does not hold what that cache needs.
        cached: Clips that every cache holds.
        questions: Questions about clips that have a file.
        answers: Questions times methods; 0 for a job that only fills caches.
        missing: Cache name -> token sets that it lacks.
        from_features: Clips of which token sets are computed from stored features.
    """

    clips: int
    without_file: int
    to_encode: int
    cached: int
    questions: int
    answers: int
    missing: dict[str, int]
    from_features: int = 0


def count(plan: Plan, *, questions: bool = True) -> Counts:
    """Count what a plan will do; without `questions`, these and the answers are counted as 0."""
    # Not all columns, which take most of a job's memory.
    columns = ["missing", "encode", "stored", *(["questions"] if questions else [])]
    present = plan.clips.select(columns).filter(pc.equal(plan.clips["status"], "ok"))
    encoded = DECODE_VIDEO.taken(present)
    stored = pc.greater(pc.list_value_length(present["stored"]), 0)
    lacking = pc.value_counts(pc.list_flatten(present["missing"])).to_pylist()
    missing = {one["values"]: int(one["counts"]) for one in lacking}
    for name, compressor in plan.compressors.items():
        if compressor.question_field is not None:
            clips = (one for one in clips_in(plan.clips) if one.status == "ok")
            groups = (len(groups_of(one, compressor)) for one in clips if name in one.missing)
            missing[name] = sum(groups)
    num_questions = sum(
        len(json.loads(text))
        for batch in (present.to_batches(max_chunksize=10_000) if questions else ())
        for text in batch["questions"].to_pylist()
    )

    def number(chosen: Any) -> int:
        return int(pc.sum(chosen).as_py() or 0)

    return Counts(
        clips=plan.clips.num_rows,
        without_file=plan.clips.num_rows - present.num_rows,
        to_encode=number(encoded),
        cached=number(pc.equal(pc.list_value_length(present["missing"]), 0)),
        questions=num_questions,
        answers=num_questions * len(plan.methods) if plan.answer else 0,
        missing={name: missing.get(name, 0) for name in plan.caches},
        from_features=number(pc.and_not(stored, encoded)),
    )


@dataclass(frozen=True)
class CellTokens:
    """Expected tokens of a clip under one method.

    Attributes:
        name: Name of the cell.
        cache: Name of the cache that its compressor fills.
        kept: Visual tokens of a clip that are kept, mean.
        total: The same before compression.
        prompt: Tokens of a prompt, mean over the questions; 0 where nothing is answered.
        longest: Tokens of the longest prompt.
        clip_bytes: Bytes of a clip in the cache.
    """

    name: str
    cache: str
    kept: float = 0.0
    total: float = 0.0
    prompt: float = 0.0
    longest: int = 0
    clip_bytes: float = 0.0


def expect_tokens(plan: Plan, language_model: LayoutAndEngine | None) -> tuple[CellTokens, ...]:
    """Calculate the tokens of every method of a plan.

    Args:
        plan: Plan of the job.
        language_model: On the device `meta`, for the text around the clip; `None` if it cannot be
            described here, then prompts are visual tokens alone.
    """
    num_frames, grid = grid_of(plan.model)
    clip = make_clip(num_frames=num_frames, grid=grid, dim=_WIDTH)
    videos = {n: _as_encoded(plan.model, one.compress(clip)) for n, one in plan.compressors.items()}
    store = plan.features
    stored = {TOKENS, *store.signals} if store and store.writes else set[str]()
    texts = _text_lengths(plan, language_model, next(iter(videos.values())))
    found = []
    for planned in plan.methods:
        video, visual = videos[planned.cache], videos[planned.cache].num_kept
        if language_model is not None:
            # The newline tokens that a model adds do not depend on the text.
            visual = language_model.layout.lay_out(video, Prompt(before="", after="?")).num_visual
        # Token sets that stored features serve are computed when they are read.
        computed = serves(plan.compressors[planned.cache], stored)
        cell = CellTokens(
            planned.name,
            planned.cache,
            kept=video.num_kept,
            total=video.num_total,
            prompt=visual + fmean(texts) if texts else 0.0,
            longest=visual + max(texts) if texts else 0,
            clip_bytes=0.0 if computed else _file_bytes(video),
        )
        found.append(cell)
    return tuple(found)


def grid_of(model: ModelSpec) -> tuple[int, tuple[int, int]]:
    """Number of frames and (H, W) of a clip's tokens; the largest if they depend on the clip."""
    if model.grid is not None:
        return model.frames.num_frames, model.grid
    frames = model.frames
    cells = (frames.max_pixels or frames.multiple**2) // frames.multiple**2
    height = max(1, int((cells * 9 / 16) ** 0.5))  # of a wide video
    return max(1, frames.num_frames // 2), (height, max(1, cells // height))


def _text_lengths(
    plan: Plan, language_model: LayoutAndEngine | None, video: CompressedVideo
) -> list[int]:
    """Number of text tokens of every question, or of those of `_MOST_CLIPS` spread clips."""
    if not plan.answer:
        return []
    step = 1 + plan.clips.num_rows // _MOST_CLIPS
    lengths = []
    for clip in clips_in(plan.clips.take(list(range(0, plan.clips.num_rows, step)))):
        subtitles = subtitles_of(clip)
        # The end of the last cue stands for the length of a video that is not opened yet.
        cues = cues_of_srt(subtitles.text or "") if subtitles else []
        end_s = max((cue.end_ms for cue in cues), default=0) / 1000
        watched = Watched(plan.model.frames.num_frames, end_s)
        for question in questions_of(clip):
            prompt = plan.protocols[clip.benchmark].prompt(question, subtitles, watched)
            laid_out = language_model and language_model.layout.lay_out(video, prompt)
            lengths.append(len(laid_out) - laid_out.num_visual if laid_out else 0)
    return lengths


def _as_encoded(model: ModelSpec, video: CompressedVideo) -> CompressedVideo:
    """Replace the tokens of a synthetic clip by random ones of the model's width and dtype."""
    shape = (video.num_kept, 1 + model.companions, model.llm.hidden_size)
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    rows = rows.to(getattr(torch, model.dtype))
    return replace(video, tokens=rows[:, 0], companions=rows[:, 1:] if model.companions else None)


def _file_bytes(video: CompressedVideo) -> float:
    """Size of a token set in a file as the cache writes it."""
    identity = ClipIdentity("0" * 20, "a clip", None, "0" * 40)
    table = to_table(identity, Entry(video, 1.0, 1.0, 1.0), "0" * 12)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **WRITE_OPTIONS)
    return float(sink.getvalue().size)


def total_bytes(cells: Sequence[CellTokens], missing: Mapping[str, int]) -> float:
    """Bytes that all caches will grow by; methods that share a cache count once."""
    return sum({one.cache: one.clip_bytes * missing[one.cache] for one in cells}.values())


def feature_bytes(plan: Plan, encoder: VisionEncoder | None) -> float:
    """Bytes that a job adds to its feature store; 0 for a job without one.

    Features are stored uncompressed, so the size follows from the shapes.

    Args:
        plan: Plan of the job.
        encoder: On the device `meta`, for the widths of signals; `None` without the checkpoint.
    """
    store = plan.features
    if store is None or not store.writes:
        return 0.0
    model = plan.model
    num_frames, grid = grid_of(model)
    cells = num_frames * grid[0] * grid[1]
    vision: Any = getattr(getattr(encoder, "config", None), "vision_config", None)
    width: int = getattr(vision, "hidden_size", _VISION_WIDTH)
    heads: int = getattr(vision, "num_attention_heads", 0)
    side: int = getattr(vision, "image_size", 0) // getattr(vision, "patch_size", 1)
    patches = num_frames * (side * side or 4 * grid[0] * grid[1])
    is_int8 = store.cache.dtype == "int8"  # with one scale per row
    itemsize: int = getattr(torch, model.dtype).itemsize
    row_bytes = model.llm.hidden_size * (1 if is_int8 else itemsize) + 4 * is_int8
    sizes = {
        TOKENS: cells * ((1 + model.companions) * row_bytes + 4),  # with one checksum per token
        "saliency": 4 * cells,
        "attention": 4 * cells,
        "keys": 4 * cells * (width // heads if heads else _HEAD_WIDTH),
        "frame_embeddings": 4 * num_frames * width,
        "tower_tokens": cells * width * itemsize,
        "unpooled_tokens": patches * model.llm.hidden_size * itemsize,
        "shallow_attention": 4 * patches,
        "deep_attention": 4 * patches,
        "merged_attention": 4 * cells,
    }
    total = 0.0
    wanted = Counter(tuple(parts) for parts in plan.clips["encode"].to_pylist() if parts)
    for parts, number in wanted.items():
        signals = store.signals & set(parts)
        num_files = (TOKENS in parts) + len(signals_parts(signals))
        stored = [*signals, *([TOKENS] if TOKENS in parts else [])]
        total += number * (sum(sizes[name] for name in stored) + num_files * _FILE_BYTES)
    return total


@dataclass(frozen=True)
class Rates:
    """Times that earlier runs, or a probe, measured.

    Attributes:
        decode_s: Seconds to decode a clip; `None` if all clips came from the cache.
        encode_s: Seconds of the vision encoder per clip; likewise.
        cells: By cell name: `compress_s` of a clip, NaN if it came from the cache; `answer_s` of
            all questions of a clip, reading the cache included; mean `prompt_tokens`.
        runs: Names of the runs.
    """

    decode_s: float | None = None
    encode_s: float | None = None
    cells: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=_CELL_RATES))
    runs: tuple[str, ...] = ()


def measured(output: Place, model: ModelSpec, device: str) -> Rates:
    """Read the rates of the newest comparable run under a directory.

    Args:
        output: Directory or URL of runs.
        model: The model with its number of frames.
        device: The processor in words (`jobs.run.build.device_name`).

    Returns:
        Empty rates if there is no such run. Runs that cannot be read are left out.
    """
    storage, wanted = Storage.at(str(output)), (model.name, model.frames.num_frames, device)
    for name in reversed(storage.folders() if storage.is_folder() else []):
        run = storage.child(name)
        try:
            facts = JobFacts.from_json(parse_json(run.read(FACTS_FILE).decode(), name))
            same = (facts.model, facts.num_frames, facts.device) == wanted
            # A profile shares nothing between questions and methods, so it takes longer.
            if same and facts.mode == "throughput" and facts.kind in ("evaluate", "sweep"):
                answers = first_answers(run)
                if len(answers):
                    return rates_of(facts.run_id, answers)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            logger.debug("run %s is not used for the estimate: %s", name, error)
    return Rates()


def first_answers(run: Storage) -> pd.DataFrame:
    """The answers of a run; of a very large one, about its first `_MOST_ROWS`.

    Raises:
        DamagedFileError: If a part is damaged.
    """
    table = next(iter(AnswerParts(run.child("answers")).whole_clips(rows=_MOST_ROWS)), None)
    return pd.DataFrame() if table is None else table.to_pandas()


def rates_of(run: str, answers: pd.DataFrame) -> Rates:
    """Rates of a run's answers (`first_answers`)."""
    # A column without a value comes from Parquet as objects.
    numbers = answers.reindex(columns=_NUMBERS).apply(pd.to_numeric, errors="coerce")
    answers = answers.assign(**numbers)
    computed = answers[answers["cache"] == "miss"].groupby(_CLIP_NAME).first()
    answered = answers[~answers["status"].isin(FAILED)]
    clips = answered.groupby(["cell", *_CLIP_NAME], sort=False)
    first = clips.first()
    # The time spent on a clip, of which each of its questions carries a share.
    spent = clips[["prefill_ms", "decode_ms"]].sum().sum(axis=1) + first["cache_read_ms"].fillna(0)
    computed_ms = first["compress_ms"].where(first["cache"] == "miss")
    prompt_tokens = answered.groupby("cell")["prompt_tokens"].mean()
    means = [computed_ms.groupby("cell").mean() / 1000, spent.groupby("cell").mean() / 1000]
    cells = pd.concat([*means, prompt_tokens], axis="columns", keys=_CELL_RATES)
    decode, encode = (computed[name].mean() for name in ("decode_video_ms", "encode_ms"))
    return Rates(_seconds(decode), _seconds(encode), cells, (run,))


def _seconds(ms: float) -> float | None:
    return None if math.isnan(ms) else float(ms) / 1000


def stage_seconds(
    counts: Counts, cells: Sequence[CellTokens], rates: Rates, *, answers: bool = True
) -> dict[str, float | None]:
    """Busy seconds of every stage that has something to do; `None` where no rate is known.

    A method that was never measured takes as long to answer as the measured ones did per token of
    their prompts, and as long to compress as the slowest of them. Reading stored features takes
    little time compared with the compressors.
    """
    found: dict[str, float | None] = {}
    if counts.to_encode:
        found["decode"] = rates.decode_s and rates.decode_s * counts.to_encode
    if counts.to_encode or counts.from_features:
        known = rates.cells["compress_s"].dropna().to_dict()
        slowest = max(known.values(), default=0.0)
        caches = {one.cache: known.get(one.name, slowest) for one in cells}
        compress = sum(seconds * counts.missing[cache] for cache, seconds in caches.items())
        encode = rates.encode_s if counts.to_encode else 0.0
        found["compress"] = None if encode is None else encode * counts.to_encode + compress
    if answers:
        known, tokens = rates.cells["answer_s"].to_dict(), float(rates.cells["prompt_tokens"].sum())
        per_token = sum(known.values()) / (tokens or 1)
        per_clip = sum(known.get(one.name, per_token * one.prompt) for one in cells)
        found["answer"] = per_clip * (counts.clips - counts.without_file) if tokens else None
    return found


def work_of(
    plan: Plan,
    counts: Counts,
    seconds: Mapping[str, float | None],
    actor_bytes: Mapping[str, float] | None = None,
    *,
    gpus: bool = True,
) -> Work:
    """Describe a job's work per stage, from which the sizes of pools are chosen.

    Args:
        plan: Plan of the job.
        counts: From `count`.
        seconds: From `stage_seconds`; where a rate is missing, default ratios are used for all.
        actor_bytes: Stage -> memory of one of its actors, where it is known.
        gpus: Whether the actors use GPUs where the cluster has some.
    """
    names = [stage.name for stage in stages_of(plan)]
    known = {name: seconds.get(name, 0.0) for name in names}
    if None in known.values() or not any(known.values()):
        known = {name: UNMEASURED[name] * max(1, counts.clips) for name in names}
    return Work(
        seconds={name: value or 0.0 for name, value in known.items()},
        num_clips=counts.clips,
        actor_bytes=actor_bytes or {},
        gpus=gpus,
    )


def time_job(
    seconds: Mapping[str, float | None],
    pools: Pools | None,
    num_cpus: float,
    *,
    price_per_hour: float | None = None,
) -> dict[str, Any]:
    """Turn busy seconds into time on the clock, as plain data.

    Args:
        seconds: From `stage_seconds`.
        pools: Workers on Ray, whose stages overlap as far as there are CPUs. `None` for the
            executor `local`: decoding overlaps with the other stages, which run one after another.
        num_cpus: CPUs of all nodes together.
        price_per_hour: Price of all nodes together.

    Returns:
        `stages` with a known rate, each with its time if it never waits for another stage;
        `wall_s` from start to end, `bottleneck` and `cost`, which are `None` if not known; and
        `unknown`, the stages without a measured rate.
    """
    known = {name: value for name, value in seconds.items() if value is not None}
    workers = {name: _workers(name, pools, num_cpus) for name in known}
    stages = [
        {"name": name, "busy_s": busy_s, "workers": workers[name], "wall_s": busy_s / workers[name]}
        for name, busy_s in known.items()
    ]
    wall: float | None = None
    if len(known) == len(seconds):
        decode, total = known.get("decode", 0.0), sum(known.values())
        if pools is None:  # executor `local` decodes in another process
            wall = (max(decode, total - decode) if num_cpus >= 2 else total) + LOOP_START_S
        else:  # by default actors reserve no CPUs, so all stages share those of the cluster
            on_cpus = [n for n in known if n == "decode" or not getattr(pools, n).num_gpus]
            cpus_s = sum(known[name] for name in on_cpus) / max(1.0, num_cpus)
            wall = max(cpus_s, *(known[n] / workers[n] for n in known), 0.0) + RAY_START_S
    return {
        "stages": stages,
        "wall_s": wall,
        "bottleneck": wall and max(known, key=lambda n: known[n] / workers[n], default=None),
        "unknown": [name for name in seconds if name not in known],
        "cost": wall and price_per_hour and wall / 3600 * price_per_hour,
    }


def _workers(name: str, pools: Pools | None, num_cpus: float) -> float:
    """Workers of a stage; decode tasks run on the CPUs that the actors leave."""
    if pools is None:
        return 1
    if name != "decode":
        pool: ActorPool = getattr(pools, name)
        return pool.most
    reserved = sum(pool.most * pool.num_cpus for pool in (pools.compress, pools.answer))
    return max(1, math.floor((num_cpus - reserved) / pools.decode.num_cpus))
