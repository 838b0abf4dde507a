"""Tokens and cache bytes of every method, from the best source there is.

What a compressor keeps may depend on the clip, so a cache or an earlier run knows best. Where
neither exists, the compressor runs on a made-up clip of the model's own size: exact for methods
with a fixed budget, near for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from jobs.estimate.rates import CellRates
from pipeline.cache.derived import serves
from pipeline.cache.folders import CacheFolder, count_tokens
from pipeline.cache.names import TOKENS
from pipeline.cache.rows import WRITE_OPTIONS, ClipIdentity, Entry, to_table
from pipeline.plan import Plan
from pipeline.rows import questions_of, subtitles_of
from tango_core.benchmarks.protocols.subtitles import Watched, cues_of_srt
from tango_core.compressors.contract.clips import make_clip
from tango_core.models.base import ModelSpec
from tango_core.models.language.model import LayoutAndEngine
from tango_core.types import CompressedVideo, Prompt, Question, Subtitles, VisualFeatures

Source = Literal["cache", "measured", "made-up clip"]

# Of questions that are tokenised; more of them change a mean by nothing that matters.
_MOST_QUESTIONS = 20_000
# Width of the made-up clip: what is kept depends on how many tokens there are, not on their width.
_WIDTH = 32


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
    source: Source
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
    clip = _made_up(plan.model)
    videos = {name: one.compress(clip) for name, one in plan.compressors.items()}
    store = plan.features
    stored = {TOKENS, *store.signals} if store and store.writes else set[str]()
    texts = _text_lengths(plan, language_model, videos)
    found = []
    for planned in plan.methods:
        video = videos[planned.cache]
        kept, total, source = _kept(planned.name, planned.cache, video, measured, folders)
        visual = kept
        if language_model is not None:
            # The newline tokens that a model adds, beside the tokens that are kept.
            around = _visual_length(plan, language_model, video)
            visual += around - video.num_kept
        found.append(
            CellTokens(
                name=planned.name,
                cache=planned.cache,
                kept=kept,
                total=total,
                source=source,
                prompt=visual + sum(texts) / len(texts) if texts else 0.0,
                longest=round(visual + max(texts)) if texts else 0,
                clip_bytes=0.0  # computed from features when it is asked for
                if serves(plan.compressors[planned.cache], stored)
                else _clip_bytes(plan.model, video, kept, folders.get(planned.cache)),
            )
        )
    return tuple(found)


def _kept(
    cell: str,
    cache: str,
    video: CompressedVideo,
    measured: Mapping[str, CellRates],
    folders: Mapping[str, CacheFolder],
) -> tuple[float, float, Source]:
    """Tokens kept, tokens of a whole clip, and who says so."""
    if cache in folders and (counts := count_tokens(folders[cache])) is not None:
        return counts.kept, counts.total, "cache"
    if cell in measured:
        return measured[cell].tokens_kept, measured[cell].tokens_total, "measured"
    return video.num_kept, video.num_total, "made-up clip"


def _made_up(model: ModelSpec) -> VisualFeatures:
    """A clip of the model's size: a scene that drifts."""
    num_frames, grid = grid_of(model)
    return make_clip(num_frames=num_frames, grid=grid, dim=_WIDTH)


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
    """Tokens of the text of every question, evenly drawn where there are very many."""
    if not plan.answer or not plan.methods:
        return []
    questions = _questions(plan)
    if language_model is None or not questions:
        return [0] if questions else []
    planned = plan.methods[0]
    video = _as_wide(plan.model, videos[planned.cache])
    lengths = []
    for benchmark, question, subtitles in questions:
        watched = Watched(plan.model.frames.num_frames, _end_s(subtitles))
        prompt = plan.protocols[benchmark].prompt(question, subtitles, watched)
        laid_out = language_model.layout.lay_out(video, prompt)
        lengths.append(len(laid_out) - laid_out.num_visual)
    return lengths


def _end_s(subtitles: Subtitles | None) -> float:
    """End of the last cue in seconds, which stands for the length of a video not opened yet."""
    cues = cues_of_srt(subtitles.text or "") if subtitles else []
    return max((cue.end_ms for cue in cues), default=0) / 1000


def _questions(plan: Plan) -> list[tuple[str, Question, Subtitles | None]]:
    """(benchmark, question, subtitles of its video), at most `_MOST_QUESTIONS`.

    They are from clips that are evenly spread.
    """
    step = max(1, -(-plan.clips.num_rows // _MOST_QUESTIONS))
    rows = plan.clips.take(list(range(0, plan.clips.num_rows, step))).to_pylist()
    found = [
        (row["benchmark"], one, subtitles_of(row)) for row in rows for one in questions_of(row)
    ]
    return found[:: max(1, -(-len(found) // _MOST_QUESTIONS))]


def _visual_length(plan: Plan, language_model: LayoutAndEngine, video: CompressedVideo) -> int:
    """Visual tokens of a prompt, with the newline tokens that the model adds."""
    prompt = Prompt(before="", after="?")  # they do not depend on the words
    return language_model.layout.lay_out(_as_wide(plan.model, video), prompt).num_visual


def _as_wide(model: ModelSpec, video: CompressedVideo) -> CompressedVideo:
    """The same positions with tokens as wide as the language model; no memory is taken."""
    width = model.llm.hidden_size
    tokens, companions = torch.zeros(1).expand(video.num_kept, width), None
    if model.companions:
        companions = torch.zeros(1).expand(video.num_kept, model.companions, width)
    return replace(video, tokens=tokens, companions=companions)


def _clip_bytes(
    model: ModelSpec,
    video: CompressedVideo,
    kept: float,
    folder: CacheFolder | None,
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
    now, made_up = datetime.now(UTC), ClipIdentity("0" * 20, "a clip", None, "0" * 40)
    generator = torch.Generator().manual_seed(0)
    shape = (video.num_kept, 1 + model.companions, model.llm.hidden_size)
    rows = torch.randn(shape, generator=generator).to(getattr(torch, model.dtype))
    companions = rows[:, 1:] if model.companions else None
    stored = replace(video, tokens=rows[:, 0], companions=companions)
    table = to_table(made_up, Entry(stored, 1.0, 1.0, 1.0), now, "0" * 12)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **WRITE_OPTIONS)
    return float(sink.getvalue().size) * kept / max(1, video.num_kept)


def total_bytes(cells: Sequence[CellTokens], missing: Mapping[str, int]) -> float:
    """Bytes that all caches will grow by; methods that share a cache count once."""
    return sum({one.cache: one.clip_bytes * missing[one.cache] for one in cells}.values())
