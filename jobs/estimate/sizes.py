"""Clips and questions of a plan, tokens of every method, and bytes that the caches grow by.

What a compressor keeps may depend on the clip, so a cache or an earlier run knows best. Where
neither exists, the compressor runs on a made-up clip of the model's own size: exact for methods
with a fixed budget, near for the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from jobs.estimate.timing import CellRates
from pipeline.cache.derived import serves
from pipeline.cache.folders import CacheFolder, count_tokens
from pipeline.cache.names import TOKENS
from pipeline.cache.rows import (
    FEATURE_WRITE_OPTIONS,
    WRITE_OPTIONS,
    ClipIdentity,
    Entry,
    signals_table,
    to_table,
    tokens_table,
)
from pipeline.clips import DECODE_VIDEO, questions_of, subtitles_of
from pipeline.plan import Plan
from pipeline.question_groups import groups_of
from pipeline.rows import clips_in
from tango_core.benchmarks.protocols.subtitles import Watched, cues_of_srt
from tango_core.compressors.contract.inputs import make_clip
from tango_core.models.base import ModelSpec, VisionEncoder
from tango_core.models.language.engine import LayoutAndEngine
from tango_core.types import CompressedVideo, Prompt, VisualFeatures

# Of questions that are tokenised; more of them change a mean by nothing that matters.
_MOST_QUESTIONS = 20_000
# Width of the made-up clip: what is kept depends on how many tokens there are, not on their width.
_WIDTH = 32
# Of SigLIP, whose keys are averaged over heads; where the checkpoint is not on this machine.
_HEAD_WIDTH, _VISION_WIDTH = 72, 1152
_CLIP, _NOW, _HASH = ClipIdentity("0" * 20, "a clip", None, "0" * 40), datetime.now(UTC), "0" * 12


@dataclass(frozen=True)
class Counts:
    """What a plan holds.

    Attributes:
        clips: All of them.
        without_file: Clips whose file is missing; they fail at once.
        to_encode: Clips that are decoded and encoded: some cache lacks them, and the feature store
            does not hold what that cache needs.
        cached: Clips that every cache holds.
        questions: About clips that have a file.
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


def count(plan: Plan) -> Counts:
    """Count what a plan will do."""
    there = plan.clips.filter(pc.equal(plan.clips["status"], "ok"))
    taken = DECODE_VIDEO.taken(there)
    stored = pc.greater(pc.list_value_length(there["stored"]), 0)
    lacking = pc.value_counts(pc.list_flatten(there["missing"])).to_pylist()
    missing = {str(one["values"]): int(one["counts"]) for one in lacking}
    missing |= {
        name: sum(
            len(groups_of(clip, compressor)) for clip in clips_in(there) if name in clip.missing
        )
        for name, compressor in plan.compressors.items()
        if compressor.question_field is not None
    }
    questions = sum(
        len(json.loads(text))
        for batch in there.select(["questions"]).to_batches(max_chunksize=10_000)
        for text in batch["questions"].to_pylist()
    )
    return Counts(
        clips=plan.clips.num_rows,
        without_file=plan.clips.num_rows - there.num_rows,
        to_encode=_number(taken),
        cached=_number(pc.equal(pc.list_value_length(there["missing"]), 0)),
        questions=questions,
        answers=questions * len(plan.methods) if plan.answer else 0,
        missing={name: missing.get(name, 0) for name in plan.caches},
        from_features=_number(pc.and_not(stored, taken)),
    )


def _number(chosen: Any) -> int:
    return int(pc.sum(chosen).as_py() or 0)


@dataclass(frozen=True)
class CellTokens:
    """What one method is expected to make of a clip.

    Attributes:
        name: Of the cell.
        cache: Name of the cache that its compressor fills.
        kept: Visual tokens of a clip that are kept, mean.
        total: The same before compression.
        source: Where `kept` comes from.
        prompt: Tokens of a prompt, mean over the questions; 0 where nothing is answered.
        longest: Tokens of the longest prompt.
        clip_bytes: Bytes of a clip in the cache.
    """

    name: str
    cache: str
    kept: float
    total: float
    source: Literal["cache", "measured", "made-up clip"]
    prompt: float
    longest: int
    clip_bytes: float


def expect_tokens(
    plan: Plan,
    language_model: LayoutAndEngine | None,
    measured: Mapping[str, CellRates],
    folders: Mapping[str, CacheFolder],
) -> tuple[CellTokens, ...]:
    """Work out the tokens of every method of a plan.

    Args:
        plan: What will be done.
        language_model: On the device `meta`, for the text around the clip; `None` if it cannot be
            described here, then prompts are visual tokens alone.
        measured: Cell name -> what earlier runs measured.
        folders: Cache name -> the cache, where it exists.
    """
    num_frames, grid = grid_of(plan.model)
    clip = make_clip(num_frames=num_frames, grid=grid, dim=_WIDTH)
    videos = {name: one.compress(clip) for name, one in plan.compressors.items()}
    store = plan.features
    stored = {TOKENS, *store.signals} if store and store.writes else set[str]()
    texts = _text_lengths(plan, language_model, videos)
    found = []
    for planned in plan.methods:
        video, folder = videos[planned.cache], folders.get(planned.cache)
        base = CellTokens(
            planned.name, planned.cache, video.num_kept, video.num_total, "made-up clip", 0, 0, 0
        )
        if folder is not None and (counts := count_tokens(folder)) is not None:
            base = replace(base, kept=counts.kept, total=counts.total, source="cache")
        elif (rates := measured.get(planned.name)) is not None:
            base = replace(
                base, kept=rates.tokens_kept, total=rates.tokens_total, source="measured"
            )
        if texts:
            visual = base.kept
            if language_model is not None:
                # The newline tokens that a model adds do not depend on the words.
                laid_out = language_model.layout.lay_out(
                    _as_wide(plan.model, video), Prompt(before="", after="?")
                )
                visual += laid_out.num_visual - video.num_kept
            base = replace(
                base,
                prompt=visual + sum(texts) / len(texts),
                longest=round(visual + max(texts)),
            )
        if not serves(plan.compressors[planned.cache], stored):  # else computed when asked for
            base = replace(base, clip_bytes=_clip_bytes(plan.model, video, base.kept, folder))
        found.append(base)
    return tuple(found)


def grid_of(model: ModelSpec) -> tuple[int, tuple[int, int]]:
    """Frames and (H, W) of a clip's tokens; of a model whose grid follows the clip, the largest."""
    if model.grid is not None:
        return model.frames.num_frames, model.grid
    frames = model.frames
    cells = (frames.max_pixels or frames.multiple**2) // frames.multiple**2
    height = max(1, int((cells * 9 / 16) ** 0.5))  # of a wide video
    return max(1, frames.num_frames // 2), (height, max(1, cells // height))


def _text_lengths(
    plan: Plan, language_model: LayoutAndEngine | None, videos: Mapping[str, CompressedVideo]
) -> list[int]:
    """Tokens of the text of every question; of very many, of those of evenly spread clips."""
    if not plan.answer or not plan.methods:
        return []
    step = max(1, -(-plan.clips.num_rows // _MOST_QUESTIONS))
    clips = clips_in(plan.clips.take(list(range(0, plan.clips.num_rows, step))))
    asked = [(clip, question) for clip in clips for question in questions_of(clip)]
    if language_model is None:
        return [0] if asked else []
    video = _as_wide(plan.model, videos[plan.methods[0].cache])
    lengths = []
    for clip, question in asked[:: max(1, -(-len(asked) // _MOST_QUESTIONS))]:
        subtitles = subtitles_of(clip)
        # The end of the last cue stands for the length of a video that is not opened yet.
        cues = cues_of_srt(subtitles.text or "") if subtitles else []
        end_s = max((cue.end_ms for cue in cues), default=0) / 1000
        watched = Watched(plan.model.frames.num_frames, end_s)
        prompt = plan.protocols[clip.benchmark].prompt(question, subtitles, watched)
        laid_out = language_model.layout.lay_out(video, prompt)
        lengths.append(len(laid_out) - laid_out.num_visual)
    return lengths


def _as_wide(model: ModelSpec, video: CompressedVideo) -> CompressedVideo:
    """The same positions with tokens as wide as the language model; no memory is taken."""
    width = model.llm.hidden_size
    tokens, companions = torch.zeros(1).expand(video.num_kept, width), None
    if model.companions:
        companions = torch.zeros(1).expand(video.num_kept, model.companions, width)
    return replace(video, tokens=tokens, companions=companions)


def _clip_bytes(
    model: ModelSpec, video: CompressedVideo, kept: float, folder: CacheFolder | None
) -> float:
    """Bytes of a clip in the cache: what is there already, else a file as the cache writes it.

    Args:
        model: Whose tokens.
        video: What is kept of the made-up clip.
        kept: Tokens that are expected.
        folder: The cache, if it exists.
    """
    if folder is not None and folder.num_clips:
        return folder.num_bytes / folder.num_clips
    generator = torch.Generator().manual_seed(0)
    shape = (video.num_kept, 1 + model.companions, model.llm.hidden_size)
    rows = torch.randn(shape, generator=generator).to(getattr(torch, model.dtype))
    companions = rows[:, 1:] if model.companions else None
    stored = replace(video, tokens=rows[:, 0], companions=companions)
    table = to_table(_CLIP, Entry(stored, 1.0, 1.0, 1.0), _NOW, _HASH)
    return _file_bytes(table, WRITE_OPTIONS) * kept / max(1, video.num_kept)


def _file_bytes(table: pa.Table, options: Mapping[str, Any]) -> int:
    """Of a Parquet file that holds a table alone."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return int(sink.getvalue().size)


def total_bytes(cells: Sequence[CellTokens], missing: Mapping[str, int]) -> float:
    """Bytes that all caches will grow by; methods that share a cache count once."""
    return sum({one.cache: one.clip_bytes * missing[one.cache] for one in cells}.values())


def feature_bytes(plan: Plan, encoder: VisionEncoder | None) -> float:
    """Bytes that a job adds to its feature store; 0 for a job without one.

    Features lie there uncompressed, so the size follows from the shapes.

    Args:
        plan: What will be done.
        encoder: On the device `meta`, for the widths of signals; `None` if it cannot be described.
    """
    store = plan.features
    if store is None or not store.writes:
        return 0.0
    wanted = Counter(tuple(parts) for parts in plan.clips["encode"].to_pylist() if parts)
    if not wanted:
        return 0.0
    features = _made_up_features(plan.model, encoder)
    total = 0.0
    for parts, number in wanted.items():
        tables = []
        if TOKENS in parts:
            tables.append(
                tokens_table(
                    _CLIP,
                    features,
                    (0, 0),
                    stored_as=store.cache.dtype,
                    created_at=_NOW,
                    cache=_HASH,
                )
            )
        signals = {name: getattr(features, name) for name in sorted(store.signals & set(parts))}
        if signals:
            tables.append(
                signals_table(_CLIP, features, signals, (0, 0), created_at=_NOW, cache=_HASH)
            )
        total += number * sum(_file_bytes(table, FEATURE_WRITE_OPTIONS) for table in tables)
    return total


def _made_up_features(model: ModelSpec, encoder: VisionEncoder | None) -> VisualFeatures:
    """A clip of the model's size with all signals."""
    num_frames, grid = grid_of(model)
    cells = grid[0] * grid[1]
    vision: Any = getattr(getattr(encoder, "config", None), "vision_config", None)
    width: int = getattr(vision, "hidden_size", _VISION_WIDTH)
    heads = getattr(vision, "num_attention_heads", None)
    side: int = getattr(vision, "image_size", 0) // getattr(vision, "patch_size", 1)
    patches = side * side or 4 * cells
    shape = (num_frames, cells, model.companions, model.llm.hidden_size)
    dtype = getattr(torch, model.dtype)
    return VisualFeatures(
        tokens=torch.zeros(num_frames, cells, model.llm.hidden_size, dtype=dtype),
        companions=torch.zeros(shape, dtype=dtype) if model.companions else None,
        grid=grid,
        timestamps=torch.arange(num_frames, dtype=torch.float64),
        saliency=torch.zeros(num_frames, cells),
        attention=torch.zeros(num_frames, cells),
        keys=torch.zeros(num_frames, cells, width // heads if heads else _HEAD_WIDTH),
        frame_embeddings=torch.zeros(num_frames, width),
        tower_tokens=torch.zeros(num_frames, cells, width, dtype=dtype),
        unpooled_tokens=torch.zeros(num_frames, patches, model.llm.hidden_size, dtype=dtype),
        shallow_attention=torch.zeros(num_frames, patches),
        deep_attention=torch.zeros(num_frames, patches),
    )
