"""The commands `tango evaluate`, `sweep`, `precompute` and `doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.checks import check_places
from jobs.cli.options import (
    RUNS,
    Address,
    Cache,
    Continue,
    Controls,
    DryRunOptions,
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
    console_of,
    display_of,
    expanded,
)
from pipeline.redaction import redacted
from tango_core.errors import InputError

if TYPE_CHECKING:
    from jobs.run.locations import Locations


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
                "--controls adds methods, and `tango evaluate` measures one; use "
                "`tango sweep --controls`"
            )
        flags = {"mode": mode, "hash_content": hash_content, "controls": controls}
        changes = _overrides(set_, limit=limit, shard=shard, **flags)
        changes += _overrides([], **{"decode.video_cache_gib": video_cache_gib})
        where = _locations(output, cache, address, tracking_uri, resume, steal, continue_)
        where = replace(where, recipe=redacted(str(recipe)))
        how = DryRunOptions(dry_run, probe, price_per_hour, json, bool(resume) or continue_)
        several = kind == "sweep"
        jobs = load_jobs(recipe, changes) if several else [single_job(load_job(recipe, changes))]
        check_places(where.output, None if len(jobs) > 1 else resume, cache)
        if how.only:
            _exit(how.estimate(jobs, kind, where))
        from jobs.run.commands import sweep

        console = console_of(json)
        _exit(sweep(jobs, where, console, display_of(console, quiet, json), kind))

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
    """Fill the token caches and answer nothing."""
    from jobs.config.recipe import load_jobs

    changes = _overrides(set_, limit=limit, shard=shard, hash_content=hash_content)
    changes += ["cache.features=all"] if features else []
    changes += _overrides([], **{"decode.video_cache_gib": video_cache_gib})
    jobs = load_jobs(recipe, changes)
    locations = replace(
        _locations(output, cache, address, tracking_uri), recipe=redacted(str(recipe))
    )
    check_places(locations.output, cache=cache)
    how = DryRunOptions(dry_run, probe, price_per_hour, json)
    if how.only:
        _exit(how.estimate(jobs, "precompute", locations))
    from jobs.run.commands import precompute as run

    console = console_of(json)
    display = display_of(console, quiet, json)
    code = max(run(job, locations, console, display) for job in jobs)
    _exit(code)


def doctor(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="Look also at what this recipe needs.", callback=expanded),
    ] = None,
    set_: Set = [],  # noqa: B006
    output: Output = RUNS,
    cache: Cache = None,
    tracking_uri: Tracking = None,
    address: Address = None,
) -> None:
    """Say in one screen whether this machine can run, before a long job does."""
    from jobs.doctor.command import doctor as run

    where = _locations(output, cache, address, tracking_uri)
    _exit(run(recipe, set_, where, Console()))


def _overrides(given: list[str], **flags: object) -> list[str]:
    """`--set` strings, followed by those that have a flag of their own and were given."""
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
) -> Locations:
    """Where the job reads and writes."""
    from jobs.run.locations import Locations
    from pipeline.storage.urls import place

    return Locations(
        place(output), cache, tracking_uri, resume, address, steal=steal, continues=continues
    )


def _exit(code: int) -> None:
    """Leave with a code that scripts can rely on."""
    raise typer.Exit(code)
