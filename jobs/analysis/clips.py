"""Clips of a recipe with their features (computed or stored), and the plans of its methods."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pandas as pd
import pyarrow as pa

from jobs.config.recipe import Job, RecipeError
from jobs.results.answer_columns import RIGHT, AnswerColumns, metric_of, scores_of
from jobs.results.summary import parts_of
from jobs.run.build import BuiltJob, build, items_of, videos_of
from pipeline.cache.derived import on_cpu
from pipeline.cache.directory import MANIFEST
from pipeline.cache.features import FeatureStore, open_store
from pipeline.cache.names import TOKENS, held_by
from pipeline.cache.rows import CacheError, identity_of
from pipeline.clips import Clip
from pipeline.plan import PlannedMethod, plan_clips, plan_methods
from pipeline.question_groups import QuestionReader, groups_of
from pipeline.rows import clips_in
from pipeline.sources import Sources
from pipeline.stages.compress import FeatureSource, frames_of
from pipeline.stages.decode import decode_video
from tango_core.combination import Combination
from tango_core.compressors.base import Compressor
from tango_core.errors import UserError
from tango_core.models import ModelSpec, load_encoder
from tango_core.models.base import VisionEncoder
from tango_core.models.placement import resolve_device
from tango_core.types import VideoFrames, VisualFeatures

_T = TypeVar("_T")
logger = logging.getLogger(__name__)


class JobClips:
    """The clips of a recipe for an analysis; methods, pools and answers are ignored.

    Features stored by a job with `cache.features` are read; other clips are decoded and encoded,
    and with that setting their features are stored.

    Args:
        job: Its benchmarks, model, limit, shard and `cache` section are used.
        cache_root: Directory or URL of the caches.

    Raises:
        RecipeError: If the recipe is invalid or there are no clips.
    """

    def __init__(self, job: Job, cache_root: str) -> None:
        self.job, self.cache_root = job, cache_root
        self.built: BuiltJob = build(replace(job, executor="local"))
        self.num_analysed = 0
        self.num_failed = 0
        self.num_stored = 0
        self._table = self._listed()
        wanted = job.cache.features
        if "merged_attention" in self.model.provides:
            raise RecipeError("analyses show every frame; leave model.merge_layers out")
        self._writes = wanted != "none"
        self.store: FeatureStore | None = open_store(
            cache_root, self.model, wanted if self._writes else "all", job.cache.feature_dtype
        )
        assert self.store is not None
        if self._writes:
            self.store.cache.prepare()
        elif not self.store.cache.storage.exists(MANIFEST):
            self.store = None
        device = resolve_device(self.model.device)
        self._source = FeatureSource(partial(load_encoder, self.model), self.store, device)
        self._parts = self.store.cache.parts() if self.store else {}

    @property
    def model(self) -> ModelSpec:
        """The model whose encoder is analysed."""
        return self.built.model

    @property
    def encoder(self) -> VisionEncoder:
        """The model's encoder, loaded on first use."""
        return self._source.encoder

    def rows(self) -> Iterator[Clip]:
        """All clips; clips with a missing file count as failed."""
        for clip in clips_in(self._table):
            if clip.status == "ok":
                yield clip
            else:
                self._failed(clip)

    def decoded(self) -> Iterator[tuple[Clip, VideoFrames]]:
        """All clips with their frames; clips that cannot be decoded are logged and counted.

        Raises:
            RecipeError: At the end, if no clip could be decoded.
        """
        yield from self._analysed((clip, self.frames(clip)) for clip in self.rows())

    def features(self, needs: frozenset[str]) -> Iterator[tuple[Clip, VisualFeatures]]:
        """All clips with their tokens and the signals `needs`.

        Args:
            needs: Names of signals; the encoder must provide all of them.

        Raises:
            RecipeError: At the end, if no clip could be decoded.
        """
        yield from self._analysed((clip, self._features_of(clip, needs)) for clip in self.rows())

    def _analysed(self, found: Iterable[tuple[Clip, _T | None]]) -> Iterator[tuple[Clip, _T]]:
        """Clips that have a value; counts them."""
        for clip, value in found:
            if value is not None:
                self.num_analysed += 1
                yield clip, value
        if not self.num_analysed:
            raise RecipeError(
                f"none of {self.num_failed} clip(s) could be decoded; see the lines above"
            )

    def _features_of(self, clip: Clip, needs: frozenset[str]) -> VisualFeatures | None:
        """Tokens and signals of a clip; `None`, and counted as failed, if it cannot be decoded."""
        stored = [part for part, keys in self._parts.items() if clip.clip_key in keys]
        lacking = {TOKENS, *needs} - held_by(stored)
        if self.store is not None and not lacking:
            try:
                features = self._source.stored(clip.clip_key, stored, needs).features
            except (CacheError, FileNotFoundError) as error:
                logger.warning("%s; the clip is encoded again", error)
            else:
                self.num_stored += 1
                return features
        decoded = self._decoded(clip)
        if decoded is None:
            return None
        frames, ms = frames_of(decoded), decoded.decode_video_ms or 0.0
        if self._writes and lacking and not decoded.damage:
            to_encode = sorted(lacking)
            identity = identity_of(vars(clip))
            return self._source.completed(identity, stored, to_encode, needs, frames, ms).features
        return self._source.encoded(frames, needs).features

    def frames(self, clip: Clip) -> VideoFrames | None:
        """The frames of a clip; `None`, and counted as failed, if it cannot be decoded."""
        decoded = self._decoded(clip)
        return None if decoded is None else frames_of(decoded)

    @property
    def subtitle(self) -> str:
        """The subtitle of a page: model, benchmark and number of clips."""
        stored = f", features of {self.num_stored} from the store" if self.num_stored else ""
        note = f" ({self.model.note})" if self.model.note else ""
        benchmarks = ", ".join(self.built.benchmarks)
        return f"{self.model.name}{note} on {self.num_analysed} clip(s) of {benchmarks}{stored}"

    def _decoded(self, clip: Clip) -> Clip | None:
        """Run the decode stage with the recipe's limits."""
        decoded = decode_video(
            clip,
            spec=self.model.frames,
            timeout_s=self.job.decode.timeout_s,
            memory_gib=self.job.decode.memory_gib,
            videos=videos_of(self.job),
        )
        if decoded.status == "ok":
            return decoded
        self._failed(decoded)
        return None

    def _failed(self, clip: Clip) -> None:
        """Log and count a clip that cannot be decoded."""
        logger.warning("%s: %s", clip.video_id, clip.error)
        self.num_failed += 1

    def _listed(self) -> pa.Table:
        """The recipe's clips; raises `RecipeError` if there are none."""
        job, built = self.job, self.built
        try:
            sources = Sources(tuple(built.mirrors.values()), videos_of(job))
            clips = plan_clips(
                items_of(job, built),
                {},
                hash_content=job.hash_content,
                identify=sources,
                compressors={name: method.compressor for name, method in built.methods},
            )
        except (UserError, OSError) as error:
            raise RecipeError(" ".join(str(error).split())) from error
        if clips.num_rows == 0:
            raise RecipeError(
                f"benchmark.name {', '.join(built.benchmarks)}: no clips found; check "
                "benchmark.root"
            )
        return clips


@dataclass(frozen=True)
class Cell:
    """A method with its options that acts before the language model.

    Attributes:
        name: Name in answers and reports.
        method: Entry of `METHODS`.
        retention: Share of the tokens asked for, in (0, 1].
        cache: Name of the token cache; cells with equal compressors share one.
        compressor: The built compressor.
    """

    name: str
    method: str
    retention: float
    cache: str
    compressor: Compressor

    @property
    def series(self) -> str:
        """The cell's name without the retention."""
        return " ".join(word for word in self.name.split(" ") if not word.startswith("r="))


Plans = list[tuple[Combination, tuple[int, ...]]]
"""The plans of a cell on a clip, each with the indices of the questions that it is for."""


class JobCells:
    """The cells of a recipe whose methods have a plan and act only before the language model.

    Args:
        clips: The recipe's clips.

    Raises:
        RecipeError: If the encoder lacks a signal that a method needs, or no cell is left.
    """

    def __init__(self, clips: JobClips) -> None:
        methods, compressors, _ = plan_methods(
            clips.built.methods,
            clips.model,
            clips.cache_root,
            features=None if clips.store is None else clips.store.cache,
        )
        self.left_out = [one.name for one in methods if not _is_before(one)]
        self.cells = [
            Cell(one.name, one.method.name, one.retention, one.cache, compressors[one.cache])
            for one in methods
            if _is_before(one)
        ]
        if not self.cells:
            raise RecipeError(
                "no method of the recipe plans its tokens before the language model, so there is "
                "nothing to analyse; add one, e.g. {name: topk, retention: 0.1}"
            )
        self._clips = clips
        self._questions = QuestionReader(clips.model)

    @property
    def notes(self) -> list[str]:
        """A note that lists the omitted cells."""
        if not self.left_out:
            return []
        names = ", ".join(self.left_out[:6]) + (", ..." if len(self.left_out) > 6 else "")
        return [
            f"{len(self.left_out)} cell(s) left out, which drop tokens inside the language model, "
            f"or have no plan: {names}"
        ]

    def planned(self) -> Iterator[tuple[Clip, VisualFeatures, dict[str, Plans]]]:
        """All clips with their features, and a mapping from cache name to plans on the CPU."""
        needs = frozenset[str]().union(*(cell.compressor.needs for cell in self.cells))
        for row, features in self._clips.features(needs):
            plans: dict[str, Plans] = {}
            for cell in self.cells:
                groups = groups_of(row, cell.compressor)
                asked = self._questions.asked(cell.compressor, features, groups)
                plans[cell.cache] = [
                    (on_cpu(cell.compressor.plan(one)), group.questions)
                    for one, group in zip(asked, groups, strict=True)
                ]
            yield row, features, plans


def _is_before(method: PlannedMethod) -> bool:
    """Whether the method has plans and acts only before the language model."""
    compressor = method.method.compressor
    plans = compressor.has_plan or compressor.outer_retention >= 1
    return method.method.pruner is None and plans


def common_retention(cells: Sequence[Cell], near: float = 0.1) -> float:
    """The retention nearest to `near` among those that nearly the most series have."""
    own = [cell.retention for cell in cells if cell.compressor.outer_retention < 1]
    most = max(map(own.count, own), default=0)
    common = [share for share in own if own.count(share) >= 0.8 * most]
    return min(common, key=lambda share: abs(share - near), default=1.0)


def scored_answers(run: Path, benchmarks: Mapping[str, Collection[str] | None]) -> pd.DataFrame:
    """The answers of a run about some clips; failed and unparsed ones are wrong and score 0.

    Args:
        run: Directory of a finished run.
        benchmarks: Benchmark -> video ids of the clips; `None` for all clips.

    Returns:
        Cell, video id, question id, `correct`, and `score`: the headline metric, or accuracy if
        that has no value per question; NaN if the right answer is unknown.

    Raises:
        FileNotFoundError: If the run has no answers.
        DamagedFileError: If a file of the run is damaged.
    """
    parts: list[pd.DataFrame] = []
    for table in parts_of(run).whole_clips():
        columns = AnswerColumns(table)
        names = columns.table.select(["benchmark", "cell", "video_id", "question_id"]).to_pandas()
        for benchmark, videos in benchmarks.items():
            score = scores_of(columns, metric_of(benchmark))
            rows = names.assign(correct=(columns.bits & RIGHT) > 0, score=score)
            own = rows["benchmark"] == benchmark
            parts.append(rows[own if videos is None else own & rows["video_id"].isin([*videos])])
    found: pd.DataFrame = pd.concat(parts).drop(columns="benchmark")
    return found
