"""Questions of runs of earlier versions, read from the benchmark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from jobs.config.overrides import read_recipe
from jobs.config.recipe import Job, parse_job
from jobs.results.facts import JOB_FILE, JobFacts
from pipeline.cache.fingerprint import SourceMissingError, clip_key, source_fingerprint
from pipeline.progress.resume import ASKED
from pipeline.rows import Clip, clip_of, to_table
from pipeline.storage.urls import is_url
from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.base import in_one_line
from tango_core.errors import InputError, MissingFileError
from tango_core.printable import printable_item

logger = logging.getLogger(__name__)

_ROWS = 5_000


def asked_by_recipe(folder: Path, facts: JobFacts) -> Iterator[pa.Table]:
    """What the recipe of a run asks, if the benchmark's files are still there.

    A file that has changed since has another key, so its tokens are not found: none are shown that
    were made from another file. Where the benchmark cannot be opened a warning says so and nothing
    is given.
    """
    path = folder / JOB_FILE
    try:
        if not path.is_file():
            raise MissingFileError("it holds no job.yaml")
        yield from _asked(parse_job(read_recipe(path), str(path)))
    except (ValueError, OSError, TypeError) as error:
        logger.warning(
            "run %s does not say what it was asked, and its benchmark does not either (%s): "
            "questions are shown without their words; run it again for them",
            facts.run_id,
            " ".join(str(error).split()),
        )


def _asked(job: Job) -> Iterator[pa.Table]:
    """The clips of all benchmarks of a recipe, whatever its shard."""
    rows: list[Clip] = []
    for section in job.all_benchmarks:
        if section.root is not None and is_url(section.root):
            raise InputError(f"benchmark.root {section.root} is in a store")
        benchmark = build_benchmark(
            section.name,
            root=section.root,
            split=section.split,
            seed=section.seed,
            protocol=section.protocol,
        )
        where = benchmark.generated_in
        if where is not None and not where.is_dir():  # looking at a run makes no videos
            raise MissingFileError(f"{where} is not there")
        with in_one_line(section.name, type(benchmark)):
            for item in benchmark.items(job.limit):
                key = fingerprint = ""
                with suppress(SourceMissingError):
                    fingerprint = source_fingerprint(item.path, job.hash_content)
                    key = clip_key(fingerprint, item.clip)
                rows.append(clip_of(section.name, printable_item(item), key, fingerprint))
                if len(rows) == _ROWS:
                    yield to_table(rows, ASKED)
                    rows = []
    yield to_table(rows, ASKED)
