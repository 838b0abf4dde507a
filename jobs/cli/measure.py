"""Commands that plan and run a job, or look whether one could run: one per mode, and `doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from jobs.cli.dry_run import DryRunOptions, Only, Price, Probe
from jobs.cli.options import (
    RUNS,
    Address,
    Cache,
    Continue,
    Controls,
    Features,
    HashContent,
    Limit,
    Mode,
    Output,
    Recipe,
    Resume,
    Set,
    Shard,
    Steal,
    Tracking,
    VideoCacheGib,
    expanded,
)
from jobs.cli.output import Json, Quiet, announce, console_of, display_of
from jobs.cli.path_checks import check_jobs, check_methods
from pipeline.redaction import redacted
from tango_core.errors import InputError

if TYPE_CHECKING:
    from jobs.run.locations import Locations


def _measuring(
    run: Callable[[Path, list[str], Locations, bool, bool, DryRunOptions], int],
    *,
    several: bool,
) -> Callable[..., None]:
    """A command with the options of every job that measures.

    Args:
        run: Recipe, changed keys, locations, `--quiet`, `--json` and what is said about a dry run
            -> exit code.
        several: Whether it measures several methods, so that controls can be added.
    """

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
        if controls and not several:
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
        _exit(run(recipe, changes, where, quiet, json, how))

    return command


def _evaluate(
    recipe: Path,
    changes: list[str],
    locations: Locations,
    quiet: bool,
    json: bool,
    dry_run: DryRunOptions,
) -> int:
    from jobs.config.recipe import load_job
    from jobs.run.single import single

    job = load_job(recipe, changes)
    one = single(job)
    check_jobs([job], recipe, locations.output, locations.resume, locations.cache)
    if dry_run.only:
        check_methods([job], recipe)
        return dry_run.estimate([one], "evaluate", locations)
    check_methods([job], recipe)
    announce([job], "evaluate", quiet)
    from jobs.run.evaluate import evaluate as run

    console = console_of(json)
    return run(job, locations, console, display_of(console, quiet, json))


def _sweep(
    recipe: Path,
    changes: list[str],
    locations: Locations,
    quiet: bool,
    json: bool,
    dry_run: DryRunOptions,
) -> int:
    from jobs.config.recipe import load_jobs

    jobs = load_jobs(recipe, changes)
    resume = None if len(jobs) > 1 else locations.resume
    check_jobs(jobs, recipe, locations.output, resume, locations.cache)
    if dry_run.only:
        check_methods(jobs, recipe)
        return dry_run.estimate(jobs, "sweep", locations)
    check_methods(jobs, recipe)
    announce(jobs, "sweep", quiet)
    from jobs.run.sweep import sweep as run

    console = console_of(json)
    return run(jobs, locations, console, display_of(console, quiet, json))


evaluate = _measuring(_evaluate, several=False)
sweep = _measuring(_sweep, several=True)


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
    check_jobs(jobs, recipe, locations.output, cache=cache)
    how = DryRunOptions(dry_run, probe, price_per_hour, json)
    if how.only:
        check_methods(jobs, recipe)
        _exit(how.estimate(jobs, "precompute", locations))
    check_methods(jobs, recipe)
    announce(jobs, "precompute", quiet)
    from jobs.run.precompute import precompute as run

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
