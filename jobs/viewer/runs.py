"""The viewed runs with grouped shards, their cells and their caches."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from jobs.config.identity import computed_part
from jobs.config.overrides import read_recipe
from jobs.config.recipe import Job, parse_job
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
            there = False
            for table in read_asked(folder):
                there = True
                yield table
            if not there:
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
            "kind": first.kind,
            "device": first.device,
            "started": first.started_at,
            "mode": first.mode,
            "note": first.note,
            "where": [redacted(str(place)) for place in self.places],
        }


@dataclass(frozen=True)
class Runs:
    """All viewed runs with the columns of the list."""

    groups: tuple[RunGroup, ...]
    columns: tuple[Column, ...] = field(default=())

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
        members: dict[str, list[tuple[Path, Place, JobFacts]]] = {}
        seen: set[Path] = set()
        for folder, place in zip(folders, places, strict=True):
            if folder.resolve() in seen:
                raise InputError(f"{place} is named twice; name every run once")
            seen.add(folder.resolve())
            facts = JobFacts.load(folder)
            members.setdefault(_job_of(folder, facts), []).append((folder, place, facts))
        groups = tuple(
            RunGroup(*(tuple(part) for part in zip(*own, strict=True))) for own in members.values()
        )
        return cls(groups, _columns(groups))


def _job_of(folder: Path, facts: JobFacts) -> str:
    """A key that is equal only for shards of the same job."""
    path = folder / JOB_FILE
    recipe = read_recipe(path) if path.is_file() else {}
    if not isinstance(recipe.pop("shard", None), str):
        return str(folder.resolve())
    about = [computed_part(recipe), facts.model, [cell.name for cell in facts.cells]]
    return json.dumps(about, sort_keys=True, default=str)


def _columns(groups: Sequence[RunGroup]) -> tuple[Column, ...]:
    """The columns in the order of the runs and of their cells."""
    found: list[Column] = []
    for number, group in enumerate(groups):
        cells: dict[str, dict[str, CellFacts]] = {}
        for facts in group.facts:
            for cell in facts.cells:
                cells.setdefault(cell.name, {}).setdefault(cell.benchmark, cell)
        start = len(found)
        names = list(cells)
        baseline = next(
            (start + at for at, n in enumerate(names) if _method(cells[n]) == BASELINE), None
        )
        for at, name in enumerate(names):
            label = name if len(groups) == 1 else f"{name} ({group.label})"
            short = name if len(groups) == 1 else f"{name} [{number + 1}]"
            own = None if start + at == baseline else baseline
            found.append(Column(number, name, label, short, cells[name], own))
    labels = [column.label for column in found]
    if len(set(labels)) < len(labels):  # runs with equal names in different directories
        found = [replace(c, label=f"{c.label} #{c.group + 1}") for c in found]
    return tuple(found)


def _method(cells: dict[str, CellFacts]) -> str:
    """The method of a column."""
    return next(iter(cells.values())).method


logger = logging.getLogger(__name__)

_ROWS = 5_000


def asked_by_recipe(folder: Path, facts: JobFacts) -> Iterator[pa.Table]:
    """Clips and questions of a run's recipe, if the benchmark's files still exist.

    A file that has changed since has another key, so tokens of a different file are never shown. If
    the benchmark cannot be opened, the result is empty and a warning is logged.
    """
    path = folder / JOB_FILE
    try:
        if not path.is_file():
            raise MissingFileError("it holds no job.yaml")
        yield from _asked(parse_job(read_recipe(path), str(path)))
    except (ValueError, OSError, TypeError) as error:
        logger.warning(
            "run %s has no record of its questions, and its benchmark cannot be read (%s): "
            "questions are shown without their text; run it again to record them",
            facts.run_id,
            " ".join(str(error).split()),
        )


def _asked(job: Job) -> Iterator[pa.Table]:
    """The clips of all benchmarks of a recipe, ignoring its shard."""
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
        if where is not None and not where.is_dir():  # do not generate videos for viewing
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
