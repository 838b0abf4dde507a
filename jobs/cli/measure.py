"""The commands `tango evaluate`, `sweep`, `precompute`, `measure-load` and `doctor`."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console

from jobs.cli import options as shared
from jobs.cli.options import Details, app, command
from pipeline.redaction import redacted
from tango_core.errors import InputError

# Name -> help, and options of `measure` that the command does not have.
_COMMANDS = {
    "evaluate": ("Measure one method on one benchmark.", ("features", "controls")),
    "sweep": ("Measure several methods and benchmarks in one pass of clips.", ("features",)),
    "precompute": (
        "Fill the token caches without answering questions.",
        ("resume", "steal", "continue_", "mode", "controls"),
    ),
}


def measure(
    recipe: Path,
    *,
    kind: Literal["evaluate", "sweep", "precompute"],
    set_: shared.Set = [],
    limit: shared.Limit = None,
    output: shared.Output = shared.RUNS,
    cache: shared.Cache = None,
    tracking_uri: shared.Tracking = None,
    resume: Annotated[shared.OptionalLocation, Details(metavar="RUN")] = None,
    steal: bool = False,
    continue_: bool = False,
    address: shared.Address = None,
    shard: Annotated[str | None, Details(metavar="I/N")] = None,
    mode: str | None = None,
    hash_content: bool = False,
    dry_run: bool = False,
    probe: bool = False,
    price_per_hour: Annotated[float | None, Details(min=0, max=1e9)] = None,
    controls: bool = False,
    features: bool = False,
    quiet: bool = False,
    json: bool = False,
    video_cache_gib: Annotated[float | None, Details(min=0.001)] = None,
) -> int:
    """Run or estimate the jobs of a recipe.

    Args:
        recipe: YAML recipe, e.g. one of jobs/recipes.
        kind: The command.
        resume: Continue this run; failed clips are retried.
        steal: Take over the run from a running driver.
        continue_: Resume this job's unfinished run.
        shard: Only every N-th clip, from the I-th (0-based).
        mode: throughput or profile.
        hash_content: Identify video files by their bytes.
        dry_run: Estimate time and memory, and do not start the job.
        probe: With --dry-run: measure ten clips now.
        price_per_hour: With --dry-run: price of all nodes per hour, to estimate the cost.
        controls: Add the controls at the recipe's retentions.
        features: Also store the encoder's features of every clip.
        quiet: Print only results, warnings and errors.
        json: Print one JSON event per line on stdout; everything else goes to stderr.
        video_cache_gib: Maximum size of a node's cache of downloaded videos, in GiB.
    """
    from jobs.config.recipe import load_job, load_jobs, single_job
    from jobs.run.locations import Locations
    from pipeline.storage.urls import place

    given = {
        "limit": limit,
        "shard": shard,
        "mode": mode,
        "hash_content": hash_content,
        "controls": controls,
        "cache.features": "all" if features else None,
        "decode.video_cache_gib": video_cache_gib,
    }
    changes = [*set_, *(f"{k}={v}" for k, v in given.items() if v not in (None, False))]
    locations = Locations(
        place(output),
        cache,
        tracking_uri,
        resume,
        address,
        steal=steal,
        continues=continue_,
        recipe=redacted(str(recipe)),
    )
    is_single = kind == "evaluate"
    jobs = [single_job(load_job(recipe, changes))] if is_single else load_jobs(recipe, changes)
    if dry_run:
        from json import dumps

        from jobs.run.dry_run import estimate_job, lines

        how = partial(estimate_job, probe=probe, price_per_hour=price_per_hour)
        estimates = [how(job, kind, locations) for job in jobs]
        if json:
            print(dumps(estimates[0] if len(estimates) == 1 else estimates, indent=2))
        else:
            print("\n\n".join("\n".join(lines(one)) for one in estimates))
        return 0
    if probe or price_per_hour is not None:
        raise InputError("--probe and --price-per-hour have no effect without --dry-run; add it")
    from jobs.run.commands import run_jobs
    from jobs.run.progress import Display

    if quiet:
        logging.getLogger().setLevel(logging.WARNING)
    # With --json, standard output is reserved for the events.
    console = Console(stderr=json)
    display = Display(console, quiet=quiet, events=sys.stdout if json else None)
    return run_jobs(jobs, locations, display, kind)


for _name, (_help, _without) in _COMMANDS.items():
    command(app, _name, kind=_name, help=_help, without=_without)(measure)


@command(app)
def measure_load(
    recipe: Path,
    *,
    set_: shared.Set = [],
    limit: shared.Limit = None,
    cache: Annotated[str, Details(callback=shared.expanded)] = shared.CACHE,
    output: Path = Path("load"),
    concurrency: list[int] = [1, 4, 16, 64],
    rate: list[float] = [],
    requests: shared.OptionalPositive = None,
    reply_tokens: shared.OptionalPositive = None,
    shared_prefixes: bool = False,
) -> int:
    """Measure throughput and latency of answering under load.

    Every clip must be in the caches. Run it again with --set engine=vllm and the same --output to
    have both engines in one table and plot.

    Args:
        recipe: Recipe whose model, methods, engine and clips to use.
        cache: Directory or URL of the token caches.
        output: Directory that receives load.md, load.png and load.json.
        concurrency: Requests that are always in flight (closed loop); may be repeated.
        rate: Mean number of requests that arrive per second (open loop); may be repeated.
        requests: Requests per measurement.  [default: all questions, at most 200]
        reply_tokens: Generate exactly N tokens per reply; replies are not scored.
        shared_prefixes: Let requests about one clip share its prefill.
    """
    from jobs.config.recipe import load_job
    from jobs.load import Load, measure_load
    from pipeline.cache.folders import find_caches

    if any(one < 1 for one in concurrency) or any(one <= 0 for one in rate):
        raise InputError("--concurrency must be 1 or larger and --rate above 0")
    changes = [*set_, *([f"limit={limit}"] if limit else [])]
    job = load_job(recipe, changes)
    find_caches(cache)  # refuses a missing directory before clips are generated
    return measure_load(
        job,
        cache,
        output,
        [Load("closed", one) for one in concurrency] + [Load("open", one) for one in rate],
        Console(),
        requests=requests,
        reply_tokens=reply_tokens,
        shared_prefixes=shared_prefixes,
    )


@command(app)
def doctor(
    recipe: Path | None = None,
    *,
    set_: shared.Set = [],
    output: shared.Output = shared.RUNS,
    cache: shared.Cache = None,
    tracking_uri: shared.Tracking = None,
    address: shared.Address = None,
) -> int:
    """Check whether this machine and a recipe are ready for a job.

    Args:
        recipe: Also check what this recipe needs.
    """
    from jobs.doctor.checks import doctor
    from jobs.run.locations import Locations
    from pipeline.storage.urls import place

    where = Locations(place(output), cache, tracking_uri, address=address)
    return doctor(recipe, set_, where, Console())
