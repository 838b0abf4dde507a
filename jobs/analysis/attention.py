"""`tango analyze attention`: how steep a model's signals are, and where in the frame they lie."""

from __future__ import annotations

from functools import partial

from rich.console import Console

from jobs.analysis.clips import JobClips
from jobs.analysis.command import Places, finish, percents, signals_of, subtitle
from jobs.analysis.figures.attention import mean_maps, rank_maps, sorted_signals
from jobs.analysis.figures.maps import SIGNAL_NAMES
from jobs.analysis.page import Drawing, Page, Table
from jobs.config.recipe import Job, RecipeError
from tango_core.analysis.attention import BAND, TOP_SHARES, SignalProfile, SignalReport
from tango_core.analysis.correlation import rank_correlation


def analyze_attention(job: Job, places: Places, console: Console) -> int:
    """Sort and average the signals of all clips of a recipe.

    Args:
        job: Its benchmarks, model, limit, shard and cache are used; its methods are not.
        places: Where to read and write.
        console: Where to print.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.

    Raises:
        RecipeError: If the encoder has no signal, no clip could be decoded, or clips differ in
            their grid.
    """
    clips = JobClips(job, places.cache_root)
    names = signals_of(clips.model)
    profiles = {name: SignalProfile(name) for name in names}
    agreements = []
    for row, features in clips.features(frozenset(names)):
        try:
            for name, profile in profiles.items():
                profile.add(getattr(features, name), features.grid)
        except ValueError as error:
            raise RecipeError(f"{row.video_id}: {error}") from error
        if len(names) == 2:
            frames = zip(*(getattr(features, name).cpu().tolist() for name in names), strict=True)
            agreements += [rho for pair in frames if (rho := rank_correlation(*pair)) is not None]
    looked_at = next(iter(profiles.values())).ranks.num_clips
    clips.raise_if_none(looked_at)
    reports = [profile.report() for profile in profiles.values()]
    page = _page(reports, agreements, subtitle(clips, looked_at))
    return finish(page, job, clips, places.folder, console)


def _page(reports: list[SignalReport], agreements: list[float], about: str) -> Page:
    """What was found."""
    findings = [
        f"{SIGNAL_NAMES[report.ranks.score]}: the highest tenth of a frame's {len(report.by_rank)} "
        f"tokens holds {100 * report.top_shares[0.1]:.0f} % of it; as spread out as "
        f"{report.effective_tokens:.0f} equally attended tokens"
        for report in reports
    ]
    if agreements:
        findings.append(
            "rank correlation of the two within a frame: "
            f"{sum(agreements) / len(agreements):.2f} on average over {len(agreements)} frames"
        )
    band = " to ".join(f"{100 * end:g}" for end in BAND)
    return Page(
        title="Attention: how steep, and where",
        subtitle=about,
        findings=findings,
        drawings=[
            Drawing(
                "sorted",
                "Sorted signals",
                "Left: a frame's signal sorted from the most attended token on, averaged over the "
                f"frames of a clip; line: mean over clips, band: {band} % of the clips. Right: "
                "what the highest tokens hold together. Dashed: all tokens equal.",
                partial(sorted_signals, reports),
            ),
            Drawing(
                "mean_maps",
                "Mean maps",
                "Mean over all frames of all clips at every position, the ten highest numbered "
                "from the highest on. A position that is high whatever the clips show is a sink.",
                partial(mean_maps, reports),
            ),
            Drawing(
                "ranks",
                "Rank of every position",
                "Positions are ranked within a frame, 1 for the most attended. A sink ranks high "
                "in every frame: a low mean and a small spread. Dashed: the spread if all ranks "
                "were equally likely. Numbers: sinks by the rule of `tango analyze sinks`.",
                partial(rank_maps, [report.ranks for report in reports]),
            ),
        ],
        tables=[_concentration(reports), _top_positions(reports), _every_position(reports)],
    )


def _concentration(reports: list[SignalReport]) -> Table:
    """How much the highest tokens hold."""
    return Table(
        "concentration",
        "What the highest tokens of a frame hold (%)",
        "Effective tokens: exp of the entropy, averaged over frames.",
        ["signal", *(f"top {100 * share:g} %" for share in TOP_SHARES), "effective", "of"],
        [
            [
                SIGNAL_NAMES[report.ranks.score],
                *percents([report.top_shares[share] for share in TOP_SHARES]),
                f"{report.effective_tokens:.1f}",
                str(len(report.by_rank)),
            ]
            for report in reports
        ],
    )


def _top_positions(reports: list[SignalReport]) -> Table:
    """The ten positions of the mean maps."""
    return Table(
        "top_positions",
        "The ten highest positions of every mean map",
        "Rank: mean and spread over all frames, 1 for the most attended position.",
        ["signal", "place", "position", "row", "column", "mean signal", "mean rank", "spread"],
        [
            [
                SIGNAL_NAMES[report.ranks.score],
                str(place),
                *_position(report, position),
            ]
            for report in reports
            for place, position in enumerate(report.top(), start=1)
        ],
    )


def _every_position(reports: list[SignalReport]) -> Table:
    """All positions, mostly for the file."""
    return Table(
        "positions",
        "Every position",
        "As above, by position.",
        ["signal", "position", "row", "column", "mean signal", "mean rank", "spread"],
        [
            [SIGNAL_NAMES[report.ranks.score], *_position(report, position)]
            for report in reports
            for position in range(len(report.mean_map))
        ],
        shown=8,
    )


def _position(report: SignalReport, position: int) -> list[str]:
    """The numbers of a position."""
    width = report.ranks.grid[1]
    return [
        str(position),
        str(position // width),
        str(position % width),
        f"{float(report.mean_map[position]):.3f}",
        f"{report.ranks.rank_mean[position]:.2f}",
        f"{report.ranks.rank_spread[position]:.2f}",
    ]
