"""`tango analyze sinks`: find the attention sinks of an encoder and write them for recipes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from jobs.analysis.clips import JobClips
from jobs.analysis.command import SIGNALS, Places, finish, subtitle
from jobs.analysis.figures.attention import rank_maps
from jobs.analysis.figures.maps import SIGNAL_NAMES
from jobs.analysis.page import Drawing, Page, Table
from jobs.config.recipe import Job, RecipeError
from pipeline.storage import Storage
from tango_core.analysis.sinks import FEWEST_CLIPS, SinkCalibration, SinkReport, SinkRule
from tango_core.models import ModelSpec
from tango_core.models.sinks import PUBLISHED_SINKS


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


def analyze_sinks(job: Job, options: SinkOptions, places: Places, console: Console) -> int:
    """Rank the positions of all frames of a recipe's clips, and write the sinks.

    Clips that cannot be decoded are skipped and counted.

    Args:
        job: Its benchmarks, model, limit, shard and cache are used; its methods are not.
        options: Score, rule and output file.
        places: Where features are read, and page and figures written.
        console: Where to print.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows; the file is written in both cases.

    Raises:
        RecipeError: If the encoder lacks the score or no clip could be decoded, in one line.
    """
    clips = JobClips(job, places.cache_root)
    score = _score(clips.model, options.score)
    calibration = SinkCalibration(score)
    for row, features in clips.features(frozenset({score})):
        try:
            calibration.add(getattr(features, score), features.grid)
        except ValueError as error:
            raise RecipeError(f"{row.video_id}: {error}") from error
    clips.raise_if_none(calibration.num_clips)
    report = calibration.report(options.rule)
    model = {"name": clips.model.name, "digest": clips.model.digest}
    text = json.dumps(report.to_json(model), indent=2)
    file = options.output
    Storage.at(file.absolute().parent).write(file.name, f"{text}\n".encode())
    page = _page(report, file, subtitle(clips, report.num_clips))
    return finish(page, job, clips, places.folder, console)


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
    use = f"to use them: --set model.sinks={path}"
    none = f"no sinks found; with {path} Tango treats all positions alike"
    return [*lines, use if report.sinks else none]


def few_clips(report: SinkReport) -> list[str]:
    """What few clips mean for sinks."""
    if report.num_clips >= FEWEST_CLIPS:
        return []
    return [
        f"{report.num_clips} clip(s) are few: a position with the same content in all of them is "
        f"taken for a sink; use at least {FEWEST_CLIPS} different clips"
    ]


def _page(report: SinkReport, file: Path, about: str) -> Page:
    """What was found."""
    width = report.grid[1]
    rows = [
        [
            str(position),
            str(position // width),
            str(position % width),
            f"{report.rank_mean[position]:.2f}",
            f"{report.rank_spread[position]:.2f}",
            "sink" if position in report.sinks else "",
        ]
        for position in sorted(range(len(report.rank_mean)), key=report.rank_mean.__getitem__)
    ]
    return Page(
        title="Attention sinks",
        subtitle=about,
        findings=describe(report, file),
        notes=few_clips(report),
        drawings=[
            Drawing(
                "ranks",
                f"Rank of every position by {SIGNAL_NAMES[report.score]}",
                "Positions are ranked within a frame, 1 for the most attended; a sink ranks high "
                "in every frame, so its mean is low and its spread small (shaded corner). Dashed: "
                "the spread if all ranks were equally likely.",
                partial(rank_maps, [report]),
            )
        ],
        tables=[
            Table(
                "positions",
                "Every position",
                "By mean rank, 1 for the most attended position of a frame.",
                ["position", "row", "column", "mean rank", "spread", "sink"],
                rows,
                shown=20,
            )
        ],
    )


def _score(model: ModelSpec, wanted: str | None) -> str:
    """The score to rank by."""
    available = [score for score in SIGNALS if score in model.provides]
    if wanted is None and available:
        return available[0]
    if wanted in available:
        return str(wanted)
    raise RecipeError(
        f"--score {wanted}: the encoder of model {model.name} provides "
        f"{', '.join(available) or 'neither saliency nor attention'}; for saliency set "
        "model.saliency_from"
    )
