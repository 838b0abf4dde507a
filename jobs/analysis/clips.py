"""Clips of a recipe with their features (computed or stored), and the plans of its methods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pandas as pd

from jobs.config.recipe import Job, RecipeError
from jobs.results.answer_columns import RIGHT, AnswerColumns, metric_of, scores_of
from jobs.results.cell_summary import series_of
from jobs.results.summary import parts_of
from jobs.run.build import build, items_of, videos_of
from pipeline.cache.derived import on_cpu
from pipeline.cache.directory import MANIFEST
from pipeline.cache.features import open_store
from pipeline.cache.names import TOKENS, held_by
from pipeline.cache.rows import CacheError
from pipeline.clips import Clip
from pipeline.plan import PlannedMethod, Sources, plan_clips, plan_methods
from pipeline.question_groups import QuestionReader, groups_of
from pipeline.rows import clips_in
from pipeline.stages.compress import FeatureSource
from pipeline.stages.decode import decode_video
from tango_core.combination import Combination
from tango_core.models import load_encoder
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

    Attributes:
        model: The model whose encoder is analysed.

    Raises:
        RecipeError: If the recipe is invalid or there are no clips.
    """

    def __init__(self, job: Job, cache_root: str) -> None:
        self.job, self.cache_root = job, cache_root
        self.built = built = build(replace(job, executor="local"))
        self.model = model = built.model
        self.num_analysed = self.num_failed = self.num_stored = 0
        self._table = plan_clips(
            items_of(job, built),
            {},
            hash_content=job.hash_content,
            identify=Sources(tuple(built.mirrors.values()), videos_of(job)),
            compressors={name: method.compressor for name, method in built.methods},
        )
        if self._table.num_rows == 0:
            raise RecipeError(
                f"benchmark.name {', '.join(built.benchmarks)}: no clips found; check "
                "benchmark.root"
            )
        if "merged_attention" in model.provides:
            raise RecipeError("analyses show every frame; leave model.merge_layers out")
        store = open_store(cache_root, model, "all", job.cache.feature_dtype)
        assert store is not None
        self.store = store if store.cache.storage.exists(MANIFEST) else None
        device = resolve_device(model.device)
        self._source = FeatureSource(partial(load_encoder, model), self.store, device)
        self._parts = self.store.cache.parts() if self.store else {}

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

    def with_frames(self) -> Iterator[tuple[Clip, VideoFrames]]:
        """Every clip and its frames; see `with_features`."""
        return self._each(self.frames)

    def with_features(self, needs: frozenset[str]) -> Iterator[tuple[Clip, VisualFeatures]]:
        """Every clip with its tokens and the signals `needs`, which the encoder must provide.

        Clips that cannot be decoded are logged and counted.

        Raises:
            RecipeError: After the last clip, if none could be decoded.
        """
        return self._each(partial(self._features, needs))

    def _each(self, get: Callable[[Clip], _T | None]) -> Iterator[tuple[Clip, _T]]:
        for clip in clips_in(self._table):
            if (value := get(clip)) is not None:
                self.num_analysed += 1
                yield clip, value
        if not self.num_analysed:
            raise RecipeError(
                f"none of {self.num_failed} clip(s) could be decoded; see the lines above"
            )

    def _features(self, needs: frozenset[str], clip: Clip) -> VisualFeatures | None:
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


class JobCells:
    """The cells of a recipe whose methods have a plan and act only before the language model.

    Args:
        clips: The recipe's clips.

    Attributes:
        table: One row per cell: `cell` (its name), `series` (the name without the retention),
            `cache` (its token cache; cells with equal compressors share one), `retention` (share of
            the tokens asked for), and `pruned` (whether that is less than all).
        share: The retention of a pruned cell that is nearest to a tenth, or 1 without any.
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
        kept = [one for one in methods if _is_before(one)]
        if not kept:
            raise RecipeError(
                "no method of the recipe plans its tokens before the language model, so there is "
                "nothing to analyse; add one, e.g. {name: topk, retention: 0.1}"
            )
        self.table = pd.DataFrame(
            {
                "cell": [one.name for one in kept],
                "series": [series_of(one.name) for one in kept],
                "cache": [one.cache for one in kept],
                "retention": [one.retention for one in kept],
                "pruned": [compressors[one.cache].outer_retention < 1 for one in kept],
            }
        )
        shares = self.table.loc[self.table["pruned"], "retention"].tolist()
        self.share = min(shares, key=lambda share: abs(share - 0.1), default=1.0)
        self.notes: list[str] = []
        if left_out := [one.name for one in methods if not _is_before(one)]:
            names = ", ".join(left_out[:6]) + (", ..." if len(left_out) > 6 else "")
            self.notes = [
                f"{len(left_out)} cell(s) left out, which drop tokens inside the language model, "
                f"or have no plan: {names}"
            ]
        self._compressors = {name: compressors[name] for name in self.table["cache"]}
        self._clips = clips

    def with_plans(self) -> Iterator[tuple[Clip, VisualFeatures, dict[str, Plans]]]:
        """Every clip, its features, and plans on the CPU by name of the token cache."""
        reader = QuestionReader(self._clips.model)
        needs = frozenset[str]().union(*(one.needs for one in self._compressors.values()))
        for clip, features in self._clips.with_features(needs):
            plans: dict[str, Plans] = {}
            for name, compressor in self._compressors.items():
                groups = groups_of(clip, compressor)
                asked = reader.asked(compressor, features, groups)
                plans[name] = [
                    (on_cpu(compressor.plan(one)), group.questions)
                    for one, group in zip(asked, groups, strict=True)
                ]
            yield clip, features, plans


def _is_before(method: PlannedMethod) -> bool:
    """Whether the method has plans and acts only before the language model."""
    compressor = method.method.compressor
    plans = compressor.has_plan or compressor.outer_retention >= 1
    return method.method.pruner is None and plans


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
