"""Directories of runs: a new one for every job, an old one for a job that goes on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from jobs.config.bounded_yaml import load_yaml
from jobs.config.identity import computed_part, job_digest
from jobs.config.overrides import recipe_of
from jobs.config.recipe import Job, RecipeError
from jobs.results.facts import JOB_FILE
from jobs.run.locations import OpenStorage
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from pipeline.storage.urls import Place, is_url, place

DIGEST_FILE = "job.digest"
"""What `config.identity` says of the job, so that `--continue` finds its run."""

# Settings of a model that several runs of one sweep differ by, besides the number of frames.
INPUT_SIZES = ("max_pixels", "pooling_step")
# First line of `job.yaml`.
_RECIPE_MARK = "# resolved from "
# What some file system refuses, e.g. the colon of `my_package.my_module:MyBenchmark`.
_NOT_IN_FILE_NAMES = r"[\\/:*?\"<>|\s]+"


def new_run_dir(
    job: Job,
    output: Place,
    *,
    methods: Sequence[str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    open_storage: OpenStorage = Storage.at,
) -> Place:
    """An unused directory below `output`, named by time, benchmark, model, its input and method.

    Args:
        job: The recipe; frames and their size are named if it sets them.
        output: Directory of all runs.
        methods: Names of the methods that the model can run; `None` for all of the recipe.
        clock: Gives the time.
        open_storage: Opens the directory.
    """
    methods = methods or [name for name, _ in job.all_methods]
    what = [
        "+".join(section.name for section in job.all_benchmarks),
        job.model.name,
        *([f"{job.model.num_frames}f"] if job.model.num_frames else []),
        *(f"{name}{size}" for name in INPUT_SIZES if (size := job.model.options.get(name))),
        methods[0].replace(" ", "-").replace("=", "")
        if len(methods) == 1
        else f"{len(methods)}-methods",
    ]
    return make_run_dir(what, output, clock=clock, open_storage=open_storage)


def make_run_dir(
    what: Sequence[str],
    output: Place,
    *,
    clock: Clock = SYSTEM_CLOCK,
    open_storage: OpenStorage = Storage.at,
) -> Place:
    """An unused directory below `output`, named by local time and what the run is about.

    Raises:
        RecipeError: If nothing can be written there.
    """
    parts = [re.sub(_NOT_IN_FILE_NAMES, "-", part) for part in what]
    stamp = f"{clock.now().astimezone():%Y%m%d-%H%M%S}"
    for attempt in range(1, 1000):
        suffix = "" if attempt == 1 else f"-{attempt}"
        run_dir = output / f"{stamp}-{'-'.join(parts)}{suffix}"
        try:
            open_storage(run_dir).create()
        except FileExistsError:
            continue
        except OSError as error:
            raise RecipeError(
                f"--output {output} cannot be written to: {error.strerror or error}; "
                "choose another one"
            ) from error
        return run_dir
    raise RecipeError(f"--output {output} holds too many runs of this second; try again")


def find_run(run: str, output: Place, *, open_storage: OpenStorage = Storage.at) -> Place:
    """The directory of an earlier run, given as a path, a URL or a name below `output`.

    Raises:
        RecipeError: If it is not there.
    """
    for candidate in [place(run)] if is_url(run) else [Path(run), output / run]:
        if open_storage(candidate).exists(JOB_FILE):
            return candidate
    raise no_run(run, output)


def no_run(run: str, output: Place) -> RecipeError:
    """The error for a run that is not there."""
    if is_url(run):
        return RecipeError(f"--resume {run}: no job.yaml is there; name the URL of a run")
    return RecipeError(
        f"--resume {run}: neither {run} nor {output / run} is a run directory with a job.yaml"
    )


def claim(
    run_dir: Place,
    job: Job,
    *,
    open_storage: OpenStorage = Storage.at,
    answers: bool = True,
    recipe: str = "",
) -> None:
    """Write the resolved recipe into a run directory, new or continued.

    Args:
        run_dir: From `new_run_dir` or `find_run`.
        job: The resolved recipe.
        open_storage: Opens directories.
        answers: Whether the run answers questions; only such a run is found by `--continue`.
        recipe: The recipe file, as it was named; a continued run keeps its first one.

    Raises:
        RecipeError: If the directory belongs to a recipe that computes something else.
    """
    storage = open_storage(run_dir)
    if storage.exists(JOB_FILE):
        old = storage.read(JOB_FILE)
        _raise_if_other_job(job, old, run_dir)
        recipe = recipe_name(old)
    # YAML takes no control characters, and a line break would end the comment.
    name = "".join(one if one.isprintable() else "?" for one in recipe)
    first = f"{_RECIPE_MARK}{name}\n" if name else ""
    storage.write(JOB_FILE, (first + job.to_yaml()).encode())
    if answers:
        storage.write(DIGEST_FILE, f"{job_digest(job)}\n".encode())


def recipe_name(job_file: bytes) -> str:
    """The recipe that a `job.yaml` was made of; "" where it does not say."""
    first = job_file.partition(b"\n")[0].decode(errors="replace")
    return first.removeprefix(_RECIPE_MARK) if first.startswith(_RECIPE_MARK) else ""


def _raise_if_other_job(job: Job, old_recipe: bytes, run_dir: Place) -> None:
    """Refuse to continue a run with a recipe that computes something else."""
    job_file = run_dir / JOB_FILE
    try:
        old = computed_part(recipe_of(old_recipe, str(job_file)))
    except RecipeError as error:
        raise RecipeError(
            f"{error}; restore the file, or start a new run without --resume: it finds the caches"
        ) from error
    new = computed_part(load_yaml(job.to_yaml()))
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if changed:
        raise RecipeError(
            f"--resume {run_dir}: the recipe's {', '.join(changed)} differs from that run; "
            f"resume it with {job_file}, or start a new run without --resume"
        )
