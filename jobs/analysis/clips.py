"""Clips of a recipe with their features (computed or stored), and the plans of its methods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
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
from pipeline.cache.rows import CacheError
from pipeline.clips import Clip
from pipeline.plan import PlannedMethod, Sources, plan_clips, plan_methods
from pipeline.question_groups import QuestionReader, groups_of
from pipeline.rows import clips_in
from pipeline.stages.compress import FeatureSource
from pipeline.stages.decode import decode_video
from tango_core.combination import Combination
from tango_core.errors import UserError
from tango_core.models import ModelSpec, load_encoder
from tango_core.models.base import VisionEncoder
from tango_core.models.placement import resolve_device
from tango_core.types import VideoFrames, VisualFeatures

_T = TypeVar("_T")
logger = logging.getLogger(__name__)

Plans = list[tuple[Combination, tuple[int, ...]]]
"""The plans of a cell on a clip, each with the indices of the questions that it is for."""


class JobClips:
    """The clips of a recipe for an analysis; methods, pools and answers are ignored.

    Features stored by a job with `cache.features` are read; other clips are decoded and encoded.

    Args:
        job: Its benchmarks, model, limit, shard and `cache` section are used.
        cache_root: Directory or URL of the caches.

    Raises:
        RecipeError: If the recipe is invalid or there are no clips.
    """

    def __init__(self, job: Job, cache_root: str) -> None:
        self.job, self.cache_root = job, cache_root
        self.built: BuiltJob = build(replace(job, executor="local"))
        self.num_analysed = self.num_failed = self.num_stored = 0
        self._table = self._listed()
        if "merged_attention" in self.model.provides:
            raise RecipeError("analyses show every frame; leave model.merge_layers out")
        store = open_store(cache_root, self.model, "all", job.cache.feature_dtype)
        assert store is not None
        self.store: FeatureStore | None = store if store.cache.storage.exists(MANIFEST) else None
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

    @property
    def subtitle(self) -> str:
        """The subtitle of a page: model, benchmark and number of clips."""
        stored = f", features of {self.num_stored} from the store" if self.num_stored else ""
        note = f" ({self.model.note})" if self.model.note else ""
        benchmarks = ", ".join(self.built.benchmarks)
        return f"{self.model.name}{note} on {self.num_analysed} clip(s) of {benchmarks}{stored}"

    def with_frames(self, use: Callable[[Clip, VideoFrames], None]) -> None:
        """Call a function with every clip and its frames; see `with_features`."""
        self._each(self.frames, use)

    def with_features(
        self, needs: frozenset[str], use: Callable[[Clip, VisualFeatures], None]
    ) -> None:
        """Call a function with every clip, its tokens and the signals `needs`.

        Clips that cannot be decoded are logged and counted.

        Args:
            needs: Names of signals; the encoder must provide all of them.
            use: The function.

        Raises:
            RecipeError: If no clip could be decoded, or with the clip's name if the function raises
                a `UserError`.
        """
        self._each(partial(self._features_of, needs), use)

    def _each(self, get: Callable[[Clip], _T | None], use: Callable[[Clip, _T], None]) -> None:
        for clip in clips_in(self._table):
            value = get(clip)
            if value is None:
                continue
            self.num_analysed += 1
            try:
                use(clip, value)
            except UserError as error:
                raise RecipeError(f"{clip.video_id}: {error}") from error
        if not self.num_analysed:
            raise RecipeError(
                f"none of {self.num_failed} clip(s) could be decoded; see the lines above"
            )

    def _features_of(self, needs: frozenset[str], clip: Clip) -> VisualFeatures | None:
        """Tokens and signals of a clip; `None`, and counted as failed, if it cannot be decoded."""
        stored = [part for part, keys in self._parts.items() if clip.clip_key in keys]
        if {TOKENS, *needs} <= held_by(stored):
            try:
                features = self._source.stored(clip.clip_key, stored, needs).features
            except (CacheError, FileNotFoundError) as error:
                logger.warning("%s; the clip is encoded again", error)
            else:
                self.num_stored += 1
                return features
        frames = self.frames(clip)
        return None if frames is None else self._source.encoded(frames, needs).features

    def frames(self, clip: Clip) -> VideoFrames | None:
        """The frames of a clip; `None`, and counted as failed, if it cannot be decoded."""
        if clip.status == "ok":
            clip = decode_video(
                clip,
                spec=self.model.frames,
                timeout_s=self.job.decode.timeout_s,
                memory_gib=self.job.decode.memory_gib,
                videos=videos_of(self.job),
            )
        if clip.status == "ok":
            return clip.frames
        logger.warning("%s: %s", clip.video_id, clip.error)
        self.num_failed += 1
        return None

    def _listed(self) -> pa.Table:
        """The recipe's clips; raises `RecipeError` if there are none."""
        job, built = self.job, self.built
        try:
            clips = plan_clips(
                items_of(job, built),
                {},
                hash_content=job.hash_content,
                identify=Sources(tuple(built.mirrors.values()), videos_of(job)),
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


class JobCells:
    """The cells of a recipe whose methods have a plan and act only before the language model.

    Args:
        clips: The recipe's clips.

    Attributes:
        table: One row per cell: `cell` (its name), `series` (the name without the retention),
            `cache` (its token cache; cells with equal compressors share one), `retention` (share of
            the tokens asked for), and `pruned` (whether that is less than all).
        notes: A note that lists the omitted cells.

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
        left_out = [one.name for one in methods if not _is_before(one)]
        rows = [
            {
                "cell": one.name,
                "series": " ".join(x for x in one.name.split(" ") if not x.startswith("r=")),
                "cache": one.cache,
                "retention": one.retention,
                "pruned": compressors[one.cache].outer_retention < 1,
            }
            for one in methods
            if _is_before(one)
        ]
        if not rows:
            raise RecipeError(
                "no method of the recipe plans its tokens before the language model, so there is "
                "nothing to analyse; add one, e.g. {name: topk, retention: 0.1}"
            )
        self.table = pd.DataFrame(rows)
        self.notes: list[str] = []
        if left_out:
            names = ", ".join(left_out[:6]) + (", ..." if len(left_out) > 6 else "")
            self.notes = [
                f"{len(left_out)} cell(s) left out, which drop tokens inside the language model, "
                f"or have no plan: {names}"
            ]
        self._compressors = {name: compressors[name] for name in self.table["cache"]}
        self._clips = clips
        self._questions = QuestionReader(clips.model)

    def with_plans(self, use: Callable[[Clip, VisualFeatures, dict[str, Plans]], None]) -> None:
        """Call a function with every clip, its features, and plans on the CPU by name of cache."""

        def planned(clip: Clip, features: VisualFeatures) -> None:
            plans: dict[str, Plans] = {}
            for name, compressor in self._compressors.items():
                groups = groups_of(clip, compressor)
                asked = self._questions.asked(compressor, features, groups)
                plans[name] = [
                    (on_cpu(compressor.plan(one)), group.questions)
                    for one, group in zip(asked, groups, strict=True)
                ]
            use(clip, features, plans)

        needs = frozenset[str]().union(*(one.needs for one in self._compressors.values()))
        self._clips.with_features(needs, planned)


def _is_before(method: PlannedMethod) -> bool:
    """Whether the method has plans and acts only before the language model."""
    compressor = method.method.compressor
    plans = compressor.has_plan or compressor.outer_retention >= 1
    return method.method.pruner is None and plans


def common_retention(cells: pd.DataFrame) -> float:
    """The retention of a pruned cell that is nearest to a tenth, or 1 without any."""
    shares = cells.loc[cells["pruned"], "retention"].tolist()
    return min(shares, key=lambda share: abs(share - 0.1), default=1.0)


def scored_answers(run: Path, benchmarks: Mapping[str, Collection[str] | None]) -> pd.DataFrame:
    """The answers of a run about some clips; failed and unparsed ones are wrong and score 0.

    Args:
        run: Directory of a finished run.
        benchmarks: Benchmark -> video ids of the clips; `None` for all clips.

    Returns:
        Cell, video id, question id, `correct`, and `score`: the headline metric, or accuracy if
        that has no value per question; without questions whose right answer is unknown.

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
    found: pd.DataFrame = pd.concat(parts).drop(columns="benchmark").dropna(subset="score")
    return found
