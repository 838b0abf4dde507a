"""Run directories: create, find and continue them; refuse to mix answers of different jobs.

Between two attempts weights may be retrained in place, a package updated or a method edited.
Answers from before and after such a change must not be mixed in one table.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.config.overrides import computed_part, load_yaml, recipe_of
from jobs.config.recipe import Job, RecipeError, job_digest
from jobs.results.facts import FACTS_FILE, FAILURES_FILE, JOB_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.run.locations import OpenStorage
from pipeline.plan import Plan
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from pipeline.storage.seal import DamagedFileError, read_sealed
from pipeline.storage.urls import Place, is_url, place
from tango_core.code_identity import pruner_identity
from tango_core.local_files import parse_json
from tango_core.models.checkpoints.directory import words_digest

logger = logging.getLogger(__name__)

DIGEST_FILE = "job.digest"
"""File with the job's digest (`config.identity`), by which `--continue` finds the run."""
CACHES_FILE = "caches.json"

# Model settings, besides the number of frames, that may differ between the runs of one sweep.
INPUT_SIZES = ("max_pixels", "pooling_step")
# First line of `job.yaml`.
_RECIPE_MARK = "# resolved from "
# Characters that some file systems refuse, e.g. the colon of `my_package.my_module:MyBenchmark`.
_NOT_IN_FILE_NAMES = r"[\\/:*?\"<>|\s]+"
_START_ANEW = "start a new run without --resume and --continue"
_STAMP = len("20260101-120000")
_CLIP = ["benchmark", "video_id", "path"]


def new_run_dir(
    job: Job,
    output: Place,
    *,
    clock: Clock = SYSTEM_CLOCK,
    open_storage: OpenStorage = Storage.at,
) -> Place:
    """Create a run directory named by time, benchmark, model, input size and method.

    Args:
        job: The recipe; the number and size of frames are part of the name if it sets them.
        output: Directory of all runs.
        clock: Clock for the time in the name.
        open_storage: Opens the directory.
    """
    names = [name for name, _ in job.all_methods]
    what = [
        "+".join(section.name for section in job.all_benchmarks),
        job.model.name,
        *([f"{job.model.num_frames}f"] if job.model.num_frames else []),
        *(f"{name}{size}" for name in INPUT_SIZES if (size := job.model.options.get(name))),
        f"{len(names)}-methods" if len(names) > 1 else names[0].replace("=", ""),
    ]
    return make_run_dir(what, output, clock=clock, open_storage=open_storage)


def make_run_dir(
    what: Sequence[str],
    output: Place,
    *,
    clock: Clock = SYSTEM_CLOCK,
    open_storage: OpenStorage = Storage.at,
) -> Place:
    """Create a directory in `output` named by local time and the parts in `what`.

    Raises:
        RecipeError: If there are too many.
    """
    parts = [re.sub(_NOT_IN_FILE_NAMES, "-", part) for part in what]
    stamp = f"{clock.now().astimezone():%Y%m%d-%H%M%S}"
    for suffix in ("", *(f"-{attempt}" for attempt in range(2, 1000))):
        run_dir = output / f"{stamp}-{'-'.join(parts)}{suffix}"
        try:
            open_storage(run_dir).create()
        except FileExistsError:
            continue
        return run_dir
    raise RecipeError(f"--output {output} has too many runs with the same start time; try again")


def find_run(run: str, output: Place, *, open_storage: OpenStorage = Storage.at) -> Place:
    """The directory of an earlier run, given as a path, a URL or a name in `output`.

    Raises:
        RecipeError: If there is no such run.
    """
    candidates = [place(run)] if is_url(run) else [Path(run), output / run]
    for candidate in candidates:
        if open_storage(candidate).exists(JOB_FILE):
            return candidate
    raise RecipeError(
        f"--resume {run}: no run directory with a job.yaml: {' or '.join(map(str, candidates))}"
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
        answers: Whether the run answers questions; `--continue` finds only such runs.
        recipe: The recipe file as given on the command line; a continued run keeps the first one.

    Raises:
        RecipeError: If the directory holds a run of a recipe that computes something else.
    """
    storage = open_storage(run_dir)
    if storage.exists(JOB_FILE):
        job_file = storage.read(JOB_FILE)
        recipe = recipe_name(job_file)
        old = computed_part(recipe_of(job_file, str(run_dir / JOB_FILE)))
        new = computed_part(load_yaml(job.to_yaml()))
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        if changed:
            raise RecipeError(
                f"--resume {run_dir}: the recipe's {', '.join(changed)} differs from that run; "
                f"resume it with {run_dir / JOB_FILE}, or {_START_ANEW}"
            )
    first = f"{_RECIPE_MARK}{recipe}\n" if recipe else ""
    storage.write(JOB_FILE, (first + job.to_yaml()).encode())
    if answers:
        storage.write(DIGEST_FILE, f"{job_digest(job)}\n".encode())


def recipe_name(job_file: bytes) -> str:
    """The recipe file recorded in a `job.yaml`; "" if none is recorded."""
    first = job_file.partition(b"\n")[0].decode(errors="replace")
    return first.removeprefix(_RECIPE_MARK) if first.startswith(_RECIPE_MARK) else ""


def unfinished_run(
    job: Job, output: Place, *, open_storage: OpenStorage = Storage.at
) -> Place | None:
    """The newest unfinished run of a job, or `None`.

    A run is finished if its summary is written and at most `max_failures` clips failed; if more
    failed, they are retried. Runs of `tango precompute`, which hold no answers, and runs of
    releases that recorded no digest are ignored.

    Args:
        job: The resolved recipe; pools, executor and timeouts are not compared.
        output: Directory of all runs.
        open_storage: Opens directories.
    """
    for name in _runs_of(job, output, open_storage):
        if not _is_finished(open_storage(output / name), job):
            logger.info("continuing %s, the newest unfinished run of this job", output / name)
            return output / name
    logger.info("no unfinished run of this job in %s; a new one starts", output)
    return None


def finished_of_round(
    jobs: Sequence[Job], output: Place, *, open_storage: OpenStorage = Storage.at
) -> dict[int, Place]:
    """Finished runs of an interrupted sweep of several jobs: index of the job -> run directory.

    The jobs of a sweep run one after the other, so runs older than the newest run of the first job
    belong to an earlier sweep. If all jobs are finished, the result is empty and a new sweep
    starts.

    Args:
        jobs: The jobs in the order of the sweep; see `unfinished_run`.
        output: Directory of all runs.
        open_storage: Opens directories.
    """
    newest = [next(_runs_of(job, output, open_storage), "") for job in jobs]
    begun, found = newest[0][:_STAMP], dict[int, Place]()
    for number, name in enumerate(newest):
        storage = open_storage(output / name)
        if begun and name[:_STAMP] >= begun and _is_finished(storage, jobs[number]):
            found[number] = output / name
    if len(found) == len(jobs):
        return {}
    for run_dir in found.values():
        logger.info("%s is finished and is skipped", run_dir)
    return found


def _runs_of(job: Job, output: Place, open_storage: OpenStorage) -> Iterator[str]:
    """Names of a job's runs, the newest first (names begin with the time)."""
    digest = job_digest(job)
    for name in reversed(open_storage(output).folders()):
        storage = open_storage(output / name)
        if storage.exists(DIGEST_FILE) and storage.read(DIGEST_FILE).decode().strip() == digest:
            yield name


def _is_finished(storage: Storage, job: Job) -> bool:
    """Whether a run has a summary and at most `max_failures` failed clips."""
    if not (storage.exists(FACTS_FILE) and storage.exists(SUMMARY_FILE)):
        return False
    try:
        failures = read_sealed(storage, FAILURES_FILE, must=False).table
    except DamagedFileError:
        return False
    clips = {tuple(row.values()) for row in failures.select(_CLIP).to_pylist()}
    return len(clips) <= job.max_failures


def claim_caches(storage: Storage, run_dir: Place, plan: Plan, *, continued: bool) -> None:
    """Record the caches, code and tokenizer of a run; refuse to continue if they have changed.

    Args:
        storage: Storage of the run directory.
        run_dir: Run directory, for messages.
        plan: Plan of the job.
        continued: Whether answers of an earlier attempt are kept. Runs of earlier releases may
            lack some or all of these records.

    Raises:
        RecipeError: If kept answers came from other caches, code or another tokenizer.
    """
    pruners = {one.name: type(one.method.pruner) for one in plan.methods if one.method.pruner}
    record = {
        "caches": {method.name: method.cache for method in plan.methods},
        "code": {name: pruner_identity(pruner) for name, pruner in pruners.items()},
        "words": words_digest(plan.model.path, plan.model.revision),
    }
    if continued and storage.exists(CACHES_FILE):
        before = parse_json(storage.read(CACHES_FILE).decode(), str(run_dir / CACHES_FILE))
        # Earlier releases recorded only the caches.
        before = before if isinstance(before.get("caches"), dict) else {"caches": before}
        for changed in _changes(before, record):
            raise RecipeError(f"--resume {run_dir}: {changed}; {_START_ANEW}")
    storage.write(CACHES_FILE, f"{json.dumps(record, indent=1)}\n".encode())


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Describe changes since the earlier attempt; entries that it did not record count as equal."""
    for name, cache in now["caches"].items():
        if before["caches"].get(name) != cache:
            yield (
                f"{name!r} was answered from the cache {before['caches'].get(name)} and would now "
                f"use {cache}, because the model's files, its dtype, the decoder or the method's "
                "code changed (compare the manifest.json of the two caches)"
            )
    for name, code in now["code"].items():
        if before.get("code", {}).get(name, code) != code:
            yield f"the code of {name!r} inside the language model has changed"
    if before.get("words", now["words"]) != now["words"]:
        yield "the model's tokenizer, chat template or generation_config.json has changed"
