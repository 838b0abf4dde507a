"""`tango analyze sinks`: find the attention sinks of an encoder and write them for recipes."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from jobs import exit_codes
from jobs.config.recipe import Job, RecipeError
from jobs.run.build import BuiltJob, build, items_of, videos_of
from pipeline.plan import plan_clips
from pipeline.rows import Row
from pipeline.sources import Sources
from pipeline.stages.compress import frames_of
from pipeline.stages.decode import decode_video
from tango_core.analysis.sinks import FEWEST_CLIPS, SinkCalibration, SinkReport, SinkRule
from tango_core.models import ModelSpec, load_encoder
from tango_core.models.sinks import PUBLISHED_SINKS

logger = logging.getLogger(__name__)

SCORES = ("saliency", "attention")


@dataclass(frozen=True)
class SinkOptions:
    """Which score to rank positions by, and when a position is a sink.

    Attributes:
        output: File to write.
        score: `"saliency"`, `"attention"`, or `None` for the first of these that the encoder has.
        rule: See `SinkRule`.
    """

    output: Path
    score: str | None = None
    rule: SinkRule = field(default_factory=SinkRule)


def analyze_sinks(job: Job, options: SinkOptions, console: Console) -> int:
    """Rank the positions of all frames of a recipe's clips, and write the sinks.

    Clips that cannot be decoded are skipped and counted.

    Args:
        job: Its benchmarks, model, limit and shard are used; its methods are not.
        options: Score, rule and output file.
        console: Where to print.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows; the file is written in both cases.

    Raises:
        RecipeError: If the encoder lacks the score or no clip could be decoded, in one line.
    """
    built = build(replace(job, executor="local"))  # in this process, whatever its jobs run on
    score = _score(built.model, options.score)
    report, num_failed = _calibrate(job, built, score, options.rule)
    model = {"name": built.model.name, "digest": built.model.digest}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.to_json(model), indent=2)
    options.output.write_text(text + "\n", encoding="utf-8")
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    for line in describe(report, options.output):
        say(line)
    if num_failed:
        say(f"{num_failed} clip(s) could not be decoded and are skipped")
    return exit_codes.of(num_failed <= job.max_failures)


def describe(report: SinkReport, path: Path) -> Sequence[str]:
    """The report as lines of text."""
    height, width = report.grid
    total = height * width
    lines = [
        f"{report.num_frames} frames of {report.num_clips} clips, {height} x {width} positions "
        f"ranked by {report.score}",
        f"{len(report.sinks)} sink(s): mean rank up to {report.rule.max_mean_rank * total:.1f} of "
        f"{total}, spread up to {report.rule.max_spread * total:.1f}",
    ]
    lines += [
        f"  {position:4d} = row {position // width}, column {position % width}: rank "
        f"{report.rank_mean[position]:.1f} ± {report.rank_spread[position]:.1f}"
        for position in report.sinks
    ]
    published = PUBLISHED_SINKS.get(report.grid)
    if published is not None:
        shared = sorted(set(published) & set(report.sinks))
        lines.append(f"of the {len(published)} published for this grid, {len(shared)}: {shared}")
    if report.num_clips < FEWEST_CLIPS:
        lines.append(
            f"note: {report.num_clips} clip(s) are few: a position with the same content in all of "
            f"them is taken for a sink; use at least {FEWEST_CLIPS} different clips"
        )
    use = f"to use them: --set model.sinks={path}"
    none = f"no sinks found; with {path} Tango treats all positions alike"
    return [*lines, use if report.sinks else none]


def _score(model: ModelSpec, wanted: str | None) -> str:
    """The score to rank by."""
    available = [score for score in SCORES if score in model.provides]
    if wanted is None and available:
        return available[0]
    if wanted in available:
        return str(wanted)
    raise RecipeError(
        f"--score {wanted}: the encoder of model {model.name} provides "
        f"{', '.join(available) or 'neither saliency nor attention'}; for saliency set "
        "model.saliency_from"
    )


def _calibrate(job: Job, built: BuiltJob, score: str, rule: SinkRule) -> tuple[SinkReport, int]:
    """Decode and encode clip by clip; the report and the number of clips that failed."""
    clips = _clips(job, built)
    calibration = SinkCalibration(score)
    encoder = load_encoder(built.model)
    num_failed = 0
    for batch in clips.to_batches(max_chunksize=1024):
        for clip in batch.to_pylist():
            row = _decoded(clip, job, built.model)
            if row["status"] != "ok":
                logger.warning("%s: %s", row["video_id"], row["error"])
                num_failed += 1
                continue
            features = encoder.encode(frames_of(row), frozenset({score}))
            calibration.add(getattr(features, score), features.grid)
    if calibration.num_clips == 0:
        raise RecipeError(f"none of {num_failed} clip(s) could be decoded; see the lines above")
    return calibration.report(rule), num_failed


def _clips(job: Job, built: BuiltJob) -> pa.Table:
    """The recipe's clips; there must be some."""
    try:
        sources = Sources(tuple(built.mirrors.values()), videos_of(job))
        clips = plan_clips(items_of(job, built), {}, identify=sources)
    except (ValueError, OSError) as error:
        raise RecipeError(" ".join(str(error).split())) from error
    if clips.num_rows == 0:
        raise RecipeError(
            f"benchmark.name {', '.join(built.benchmarks)}: no clips found; check benchmark.root"
        )
    return clips


def _decoded(clip: Row, job: Job, model: ModelSpec) -> Row:
    """The decode stage, with the recipe's limits."""
    return decode_video(
        clip,
        spec=model.frames,
        timeout_s=job.decode.timeout_s,
        memory_gib=job.decode.memory_gib,
        videos=videos_of(job),
    )
