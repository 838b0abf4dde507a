"""The viewed runs with grouped shards, their cells and their caches."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from jobs.config.identity import computed_part
from jobs.config.overrides import read_recipe
from jobs.config.recipe import Job, parse_job
from jobs.config.sections import BenchmarkSection
from jobs.results.facts import JOB_FILE, CellFacts, JobFacts
from jobs.results.quantities import Json
from pipeline.cache.fingerprint import SourceMissingError, clip_key, source_fingerprint
from pipeline.clips import Clip, clip_of
from pipeline.progress.resume import ASKED, read_asked
from pipeline.redaction import redacted
from pipeline.rows import to_table
from pipeline.storage.urls import Place, is_url
from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.base import in_one_line
from tango_core.errors import InputError, MissingFileError
from tango_core.printable import printable, printable_item

BASELINE = "full"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Column:
    """One column of the list: a cell in a group of runs, possibly with several benchmarks.

    Attributes:
        group: Index of the group of runs.
        name: Name in the answers' column `cell`.
        label: Unique name for links, independent of the other opened runs.
        short: Unique short name for headings.
        cells: Recorded facts of the cell by benchmark.
        baseline: Index of the column `full` of the same group; `None` if there is none, or for
            `full` itself.
    """

    group: int
    name: str
    label: str
    short: str
    cells: dict[str, CellFacts]
    baseline: int | None = None

    @property
    def first(self) -> CellFacts:
        """Facts of the first benchmark; method, retention and options are equal for all."""
        return next(iter(self.cells.values()))


@dataclass(frozen=True)
class RunGroup:
    """A run, or runs that are shards of one job.

    Attributes:
        folders: Run directories, or local copies of them.
        places: Original paths or URLs.
        facts: Recorded facts of each run.
    """

    folders: tuple[Path, ...]
    places: tuple[Place, ...]
    facts: tuple[JobFacts, ...]

    @property
    def label(self) -> str:
        """Display name of the group."""
        more = len(self.facts) - 1
        return self.facts[0].run_id + (f" and {more} more shards" if more else "")

    def asked(self) -> Iterator[pa.Table]:
        """Clips and questions of the runs, as recorded, or else from the current benchmark."""
        for folder, facts in zip(self.folders, self.facts, strict=True):
            recorded = False
            for table in read_asked(folder):
                recorded = True
                yield table
            if not recorded:
                yield from asked_by_recipe(folder, facts)

    def cache_roots(self, given: str | None) -> list[str]:
        """Possible directories or URLs of the caches, the likeliest first.

        Args:
            given: Value of `--cache`, which is then the only result.
        """
        if given is not None:
            return [given]
        recorded = [facts.cache_root for facts in self.facts if facts.cache_root]
        beside = [str(place.parent / "cache") for place in self.places]
        return list(dict.fromkeys([*recorded, *beside]))

    def to_json(self) -> Json:
        """The group as JSON for the page."""
        first = self.facts[0]
        return {
            "label": printable(self.label),
            "ids": [facts.run_id for facts in self.facts],
            "model": first.model,
            "frames": first.num_frames,
            "device": first.device,
            "started": first.started_at,
            "note": first.note,
            "where": [redacted(str(place)) for place in self.places],
        }


@dataclass(frozen=True)
class Runs:
    """All viewed runs with the columns of the list."""

    groups: tuple[RunGroup, ...]
    columns: tuple[Column, ...] = ()

    @classmethod
    def open(cls, folders: Sequence[Path], places: Sequence[Place]) -> Runs:
        """Read the facts of runs.

        Args:
            folders: Run directories, or local copies.
            places: Original paths or URLs.

        Raises:
            FileNotFoundError: If a directory is not a finished run.
            ValueError: If a run is named twice, or its facts are damaged.
        """
        jobs: dict[str, list[tuple[Path, Place, JobFacts]]] = {}
        seen: set[Path] = set()
        for folder, place in zip(folders, places, strict=True):
            if folder.resolve() in seen:
                raise InputError(f"{place} is named twice; name every run once")
            seen.add(folder.resolve())
            facts, recipe = JobFacts.load(folder), folder / JOB_FILE
            content = read_recipe(recipe) if recipe.is_file() else {}
            job = str(folder.resolve())
            if isinstance(content.pop("shard", None), str):  # equal for all shards of the job
                about = [computed_part(content), facts.model, [cell.name for cell in facts.cells]]
                job = json.dumps(about, sort_keys=True, default=str)
            jobs.setdefault(job, []).append((folder, place, facts))
        groups = tuple(RunGroup(*map(tuple, zip(*own, strict=True))) for own in jobs.values())
        return cls(groups, _columns(groups))


def _columns(groups: Sequence[RunGroup]) -> tuple[Column, ...]:
    """The columns in the order of the runs and of their cells."""
    found: list[Column] = []
    for number, group in enumerate(groups):
        cells: dict[str, dict[str, CellFacts]] = {}
        for facts in group.facts:
            for cell in facts.cells:
                cells.setdefault(cell.name, {}).setdefault(cell.benchmark, cell)
        methods = [next(iter(one.values())).method for one in cells.values()]
        full = methods.index(BASELINE) + len(found) if BASELINE in methods else None
        for name, by_benchmark in cells.items():
            label, short = name, name
            if len(groups) > 1:
                label, short = f"{name} ({group.label})", f"{name} [{number + 1}]"
            baseline = None if full == len(found) else full
            found.append(Column(number, name, label, short, by_benchmark, baseline))
    if len({column.label for column in found}) < len(found):  # equal names of run directories
        found = [replace(c, label=f"{c.label} #{c.group + 1}") for c in found]
    return tuple(found)


def asked_by_recipe(folder: Path, facts: JobFacts) -> Iterator[pa.Table]:
    """Clips and questions of a run's recipe, if the benchmark's files still exist.

    A file that has changed since has another key, so tokens of a different file are never shown. If
    the benchmark cannot be opened, the result is empty and a warning is logged.
    """
    path = folder / JOB_FILE
    try:
        if not path.is_file():
            raise MissingFileError("it holds no job.yaml")
        job = parse_job(read_recipe(path), str(path))
        for section in job.all_benchmarks:
            yield to_table(_clips_of(section, job), ASKED)
    except (ValueError, OSError, TypeError) as error:
        logger.warning(
            "run %s has no record of its questions, and its benchmark cannot be read (%s): "
            "questions are shown without their text; run it again to record them",
            facts.run_id,
            " ".join(str(error).split()),
        )


def _clips_of(section: BenchmarkSection, job: Job) -> list[Clip]:
    """The clips of a benchmark of a recipe, ignoring its shard."""
    if section.root is not None and is_url(section.root):
        raise InputError(f"benchmark.root {section.root} is in a store")
    options = {name: getattr(section, name) for name in ("root", "split", "seed", "protocol")}
    benchmark = build_benchmark(section.name, **options)
    where = benchmark.generated_in
    if where is not None and not where.is_dir():  # do not generate videos for viewing
        raise MissingFileError(f"{where} is not there")
    rows: list[Clip] = []
    with in_one_line(section.name, type(benchmark)):
        for item in benchmark.items(job.clips_of(benchmark)):
            key = fingerprint = ""
            with suppress(SourceMissingError):
                fingerprint = source_fingerprint(item.path, job.hash_content)
                key = clip_key(fingerprint, item.clip)
            rows.append(clip_of(section.name, printable_item(item), key, fingerprint))
    return rows
