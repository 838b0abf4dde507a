"""The commands `tango evaluate`, `sweep`, `precompute` and `doctor`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer
from rich.console import Console

from jobs.cli.options import (
    RUNS,
    Address,
    Cache,
    Continue,
    Controls,
    Features,
    HashContent,
    Json,
    Limit,
    Mode,
    Only,
    Output,
    Price,
    Probe,
    Quiet,
    Recipe,
    Resume,
    Set,
    Shard,
    Steal,
    Tracking,
    VideoCacheGib,
    expanded,
)
from pipeline.redaction import redacted
from tango_core.errors import InputError

if TYPE_CHECKING:
    from jobs.config.recipe import Job
    from jobs.run.dry_run import DryRun
    from jobs.run.locations import Locations

_VIDEO_CACHE = "decode.video_cache_gib"


def _measuring(kind: Literal["evaluate", "sweep"]) -> Callable[..., None]:
    """The command `tango evaluate` or `tango sweep`."""

    def command(
        recipe: Recipe,
        set_: Set = [],  # noqa: B006
        limit: Limit = None,
        output: Output = RUNS,
        cache: Cache = None,
        tracking_uri: Tracking = None,
        resume: Resume = None,
        steal: Steal = False,
        continue_: Continue = False,
        address: Address = None,
        shard: Shard = None,
        mode: Mode = None,
        hash_content: HashContent = False,
        dry_run: Only = False,
        probe: Probe = False,
        price_per_hour: Price = None,
        controls: Controls = False,
        quiet: Quiet = False,
        json: Json = False,
        video_cache_gib: VideoCacheGib = None,
    ) -> None:
        from jobs.config.recipe import load_job, load_jobs, single_job

        if controls and kind == "evaluate":
            raise InputError(
                "--controls adds methods, but `tango evaluate` measures only one; use "
                "`tango sweep --controls`"
            )
        flags = {"mode": mode, "hash_content": hash_content, "controls": controls}
        changes = _overrides(
            set_, limit=limit, shard=shard, **flags, **{_VIDEO_CACHE: video_cache_gib}
        )
        locations = _locations(
            output, cache, address, tracking_uri, resume, steal, continue_, recipe=recipe
        )
        several = kind == "sweep"
        jobs = load_jobs(recipe, changes) if several else [single_job(load_job(recipe, changes))]
        how = _estimate(dry_run, probe, price_per_hour, json, bool(resume) or continue_)
        _run(jobs, kind, locations, how, quiet, json)

    return command


evaluate, sweep = _measuring("evaluate"), _measuring("sweep")


def precompute(
    recipe: Recipe,
    set_: Set = [],  # noqa: B006
    limit: Limit = None,
    output: Output = RUNS,
    cache: Cache = None,
    tracking_uri: Tracking = None,
    address: Address = None,
    shard: Shard = None,
    hash_content: HashContent = False,
    dry_run: Only = False,
    probe: Probe = False,
    price_per_hour: Price = None,
    quiet: Quiet = False,
    json: Json = False,
    video_cache_gib: VideoCacheGib = None,
    features: Features = False,
) -> None:
    """Fill the token caches without answering questions."""
    from jobs.config.recipe import load_jobs

    features_of = {"cache.features": "all" if features else None, _VIDEO_CACHE: video_cache_gib}
    changes = _overrides(set_, limit=limit, shard=shard, hash_content=hash_content, **features_of)
    jobs = load_jobs(recipe, changes)
    locations = _locations(output, cache, address, tracking_uri, recipe=recipe)
    how = _estimate(dry_run, probe, price_per_hour, json)
    _run(jobs, "precompute", locations, how, quiet, json)


def doctor(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="Also check what this recipe needs.", callback=expanded),
    ] = None,
    set_: Set = [],  # noqa: B006
    output: Output = RUNS,
    cache: Cache = None,
    tracking_uri: Tracking = None,
    address: Address = None,
) -> None:
    """Check whether this machine, and optionally a recipe, is ready for a job."""
    from jobs.doctor.command import doctor as run

    where = _locations(output, cache, address, tracking_uri)
    raise typer.Exit(run(recipe, set_, where, Console()))


def _overrides(given: list[str], **flags: object) -> list[str]:
    """`--set` strings, followed by the settings given as separate options."""
    return [
        *given,
        *(f"{key}={value}" for key, value in flags.items() if value not in (None, False)),
    ]


def _locations(
    output: str,
    cache: str | None,
    address: str | None,
    tracking_uri: str | None = None,
    resume: str | None = None,
    steal: bool = False,
    continues: bool = False,
    recipe: Path | None = None,
) -> Locations:
    """Where the job reads and writes."""
    from jobs.run.locations import Locations
    from pipeline.storage.urls import place

    return Locations(
        place(output),
        cache,
        tracking_uri,
        resume,
        address,
        steal=steal,
        continues=continues,
        recipe=redacted(str(recipe or "")),
    )


def _estimate(
    wanted: bool, probe: bool, price_per_hour: float | None, json: bool, continues: bool = False
) -> DryRun | None:
    """Options of a dry run; `None` without `--dry-run`.

    Raises:
        InputError: For options that have no effect in this combination.
    """
    given = {"--probe": probe, "--price-per-hour": price_per_hour is not None}
    if not wanted and any(given.values()):
        names = ", ".join(name for name, is_given in given.items() if is_given)
        raise InputError(f"{names} has no effect without --dry-run; add it")
    if not wanted:
        return None
    if continues:
        raise InputError("--dry-run estimates a whole job; leave out --resume and --continue")
    from jobs.run.dry_run import DryRun

    return DryRun(probe, price_per_hour, json)


def _run(
    jobs: Sequence[Job],
    kind: Literal["evaluate", "sweep", "precompute"],
    locations: Locations,
    dry_run: DryRun | None,
    quiet: bool,
    json: bool,
) -> NoReturn:
    """Run or estimate the jobs of a command, and exit with its exit code."""
    if dry_run is not None:
        from jobs.run.dry_run import dry_run as estimate

        raise typer.Exit(estimate(jobs, kind, locations, Console(), dry_run))
    from jobs.run.commands import run_jobs
    from jobs.run.progress import Display

    locations.raise_if_unusable()
    if quiet:
        logging.getLogger().setLevel(logging.WARNING)
    # With --json, standard output is reserved for the events.
    console = Console(stderr=json)
    display = Display.on(console, quiet=quiet, events=sys.stdout if json else None)
    raise typer.Exit(run_jobs(jobs, locations, console, display, kind))
