"""Kept and merged tokens of a cell on a clip, in the form that the page draws.

A method that reads the question has a token set per question text, others have one per clip. An
encoder that merges frames has tokens of fewer frames: they are drawn at the first frame that they
stand for, as merged from the same position of all of them.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from jobs.config.overrides import read_recipe
from jobs.config.recipe import parse_job
from jobs.results.quantities import Json
from pipeline.cache.derived import compressor_of, features_with
from pipeline.cache.directory import TokenCache
from pipeline.cache.features import ReadFeatures
from pipeline.cache.rows import CacheError
from pipeline.clips import Clip
from pipeline.question_groups import QuestionGroup, QuestionReader, groups_of
from pipeline.redaction import redacted
from tango_core.combination import Combination, Drawing
from tango_core.compressors.base import Compressor
from tango_core.errors import UserError
from tango_core.models import Dtype, describe_model
from tango_core.types import VisualFeatures

ONLY_POSITIONS = (
    "Only the kept positions of this token set are known, not the merged tokens, the segments, the "
    "static positions or the saliency. They are computed from stored features, for methods of this "
    "version that have a plan: run the recipe with cache.features: all."
)


@dataclass(frozen=True)
class TokenDrawing:
    """A token set with the data that the page draws.

    Attributes:
        plan: Kept tokens and their sources; a selection if the sources are unknown.
        about: How the method chooses tokens, in its own words; "" if it does not ship.
        missing: Sentences about what cannot be drawn, and how to obtain it.
    """

    plan: Combination
    about: str = ""
    missing: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """JSON for the page; arrays are base64 of little-endian numbers."""
        plan, drawing = self.plan, self.plan.drawing or Drawing()
        index_type = "<u2" if plan.num_total <= 65536 else "<u4"
        scale = drawing.saliency_range
        return {
            "grid": list(plan.grid),
            "times": [round(time, 4) for time in plan.timestamps.tolist()],
            "index_type": index_type,
            "kept": _packed(plan.indices, index_type),
            "offsets": _packed(plan.offsets, "<u4"),
            "sources": _packed(plan.sources, index_type),
            "weights": _packed(plan.weights, "<f4"),
            "segments": list(drawing.segments),
            "static": _packed(drawing.static, "u1"),
            "saliency": _packed(drawing.saliency, "u1"),
            "range": None if scale is None else [float(f"{one:.4g}") for one in scale.tolist()],
            "about": self.about,
            "missing": list(self.missing),
        }


def _packed(values: torch.Tensor | None, kind: str) -> str | None:
    """Encode numbers as base64; `None` is unchanged."""
    if values is None:
        return None
    return base64.b64encode(values.numpy().astype(kind).tobytes()).decode()


@dataclass(frozen=True)
class ClipTokens:
    """The token sets of a cell on a clip.

    Attributes:
        sets: One per question text, or a single one.
        sampling: Settings by which the model's frames were sampled; `None` if not recorded.
        of: Index of the question in the run's record of the clip -> its token set; empty if all
            questions share one.
    """

    sets: tuple[TokenDrawing, ...]
    sampling: Mapping[str, Any] | None
    of: Mapping[int, int] = field(default_factory=dict)

    def for_question(self, index: int | None = None) -> TokenDrawing:
        """The token set of a question; the first one for `None`."""
        return self.sets[0 if index is None else self.of.get(index, 0)]


class TokenSets:
    """The token caches of some runs, opened on first use.

    Args:
        roots: Possible directories or URLs of the caches, the likeliest first.
        recipe: Resolved recipe of a run, for the embeddings of questions.
    """

    def __init__(self, roots: Sequence[str], recipe: Path | None = None) -> None:
        self.roots = tuple(roots)
        self._recipe = recipe
        self._lock = threading.Lock()
        self._opened: dict[str, TokenCache | str] = {}
        self._readers: dict[str, Callable[[str], ReadFeatures]] = {}
        self._reader: QuestionReader | None = None

    def tokens(self, name: str, asked: Mapping[str, Any]) -> ClipTokens | str:
        """Load token sets; or return a sentence with the reason why they are missing.

        Args:
            name: Name of the cache.
            asked: Row of `clips/*.parquet` of the clip.
        """
        if not name:
            return "The run has no record of its token cache."
        if not asked["clip_key"]:
            return "The clip's file was not found, so there is nothing stored to draw."
        names = ("benchmark", "video_id", "clip_key", "questions")
        clip = Clip(**{name: asked[name] for name in names})
        with self._lock:  # reading fills the indices of shards
            cache = self._cache(name)
            if isinstance(cache, str):
                return cache
            compressor = compressor_of(cache.settings)
            own = [QuestionGroup(clip.clip_key, None, ())]
            groups = groups_of(clip, compressor) if compressor is not None else own
            try:
                sets = self._sets(cache, compressor, clip.clip_key, groups)
            except FileNotFoundError:
                return (
                    f"The token cache {name} does not hold this clip: it was removed, or the video "
                    "was replaced since. Run the job again."
                )
            except (CacheError, UserError, OSError) as error:
                return f"{redacted(' '.join(str(error).split()))}. Run the job again."
        model = cache.settings.get("model")
        sampling = model.get("frames") if isinstance(model, dict) else None
        if groups[0].text is None:
            return ClipTokens(sets, sampling)
        of = {index: at for at, group in enumerate(groups) for index in group.questions}
        return ClipTokens(sets, sampling, of)

    def _sets(
        self,
        cache: TokenCache,
        compressor: Compressor | None,
        key: str,
        groups: Sequence[QuestionGroup],
    ) -> tuple[TokenDrawing, ...]:
        """The token sets of a clip, from its features if they are stored."""
        about = "" if compressor is None else (type(compressor).__doc__ or "").partition("\n")[0]
        if compressor is not None and (compressor.has_plan or compressor.outer_retention >= 1):
            try:
                if cache.name not in self._readers:  # the locations of all features are listed once
                    self._readers[cache.name] = features_with(cache, compressor)
                features = self._readers[cache.name](key).features
            except FileNotFoundError:
                pass
            else:
                reads = compressor.question_field is not None
                reader = self._questions(cache.settings["model"]["dtype"]) if reads else None
                asked = reader.asked(compressor, features, groups) if reader else [features]
                plans = map(compressor.plan, asked)
                return tuple(TokenDrawing(on_clip(plan, features), about) for plan in plans)
        kept = [cache.read(group.key).video for group in groups]
        selections = (Combination(one.indices, one.grid, one.timestamps) for one in kept)
        return tuple(TokenDrawing(plan, about, (ONLY_POSITIONS,)) for plan in selections)

    def _questions(self, dtype: Dtype) -> QuestionReader:
        """Reads the embeddings of questions from the run's checkpoint, and no other weight."""
        if self._reader is None:
            assert self._recipe is not None
            model = parse_job(read_recipe(self._recipe), str(self._recipe)).model
            path = None if model.path is None else str(model.path)
            revision = model.revision
            self._reader = QuestionReader(
                describe_model(model.name, path, dtype=dtype, device="cpu", revision=revision)
            )
        return self._reader

    def _cache(self, name: str) -> TokenCache | str:
        """An opened cache, or the reason why there is none."""
        if name not in self._opened:
            where = " or ".join(redacted(root) for root in self.roots)
            self._opened[name] = (
                f"The token cache {name} is not in {where}. Name its directory with --cache."
            )
            for root in self.roots:
                try:
                    self._opened[name] = TokenCache.existing(root, name)
                except FileNotFoundError:
                    continue
                except (CacheError, OSError, ValueError) as error:
                    self._opened[name] = f"{redacted(' '.join(str(error).split()))}."
                break
        return self._opened[name]


def on_clip(plan: Combination, features: VisualFeatures) -> Combination:
    """A plan over frames that the encoder merged, as one over all frames of the clip.

    A merged frame stands for the frames from its own up to the next one that the encoder kept; its
    tokens are drawn as averages of theirs.
    """
    if features.frame_map is None or features.source_timestamps is None:
        return plan
    first, times = features.frame_map[:, 0], features.source_timestamps
    length, num_frames = features.tokens.shape[1], len(times)
    spans = torch.diff(first, append=torch.tensor([num_frames]))
    owner = torch.arange(len(first)).repeat_interleave(spans)

    def moved(positions: torch.Tensor) -> torch.Tensor:
        return first[positions // length] * length + positions % length

    sources, weights, offsets = plan.sources, plan.weights, plan.offsets
    if sources is None or weights is None or offsets is None:
        sources, weights = plan.indices, torch.ones(plan.num_kept)
        offsets = torch.arange(plan.num_kept + 1)
    repeats = spans[sources // length]
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), repeats.cumsum(0)])
    steps = torch.arange(int(ends[-1])) - ends[:-1].repeat_interleave(repeats)
    drawing = plan.drawing or Drawing()
    starts = torch.tensor([0, *drawing.segments]).cumsum(0)
    borders = torch.cat([first, torch.tensor([num_frames])])[starts]
    return Combination(
        indices=moved(plan.indices),
        grid=(num_frames, *plan.grid[1:]),
        timestamps=times,
        offsets=ends[offsets],
        sources=moved(sources).repeat_interleave(repeats) + steps * length,
        weights=(weights / repeats).repeat_interleave(repeats),
        drawing=replace(
            drawing,
            segments=tuple(torch.diff(borders).tolist()),
            static=None if drawing.static is None else drawing.static[owner],
            saliency=None if drawing.saliency is None else drawing.saliency[owner],
        ),
    )
