"""The viewed runs with grouped shards, their cells and their caches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.config.overrides import computed_part, read_recipe
from jobs.results.cell_summary import BASELINE
from jobs.results.facts import JOB_FILE, CellFacts, JobFacts
from jobs.results.quantities import Json
from pipeline.redaction import redacted
from pipeline.storage.urls import Place
from tango_core.errors import InputError
from tango_core.printable import printable


@dataclass(frozen=True)
class Column:
    """One column of the list: a cell in a group of runs, possibly with several benchmarks.

    Attributes:
        group: Index of the group of runs.
        name: Name in the answers' column `cell`.
        label: Unique name for links.
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

    def to_json(self) -> Json:
        """The column as JSON for the page; method and retention are equal for all benchmarks."""
        first = next(iter(self.cells.values()))
        names = ("label", "short", "name", "group", "baseline")
        return {
            **{name: getattr(self, name) for name in names},
            "method": first.method,
            "retention": first.retention,
            "layers": first.mean_layer_share,
        }


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

    @property
    def recipe(self) -> Path:
        """The resolved recipe of the first run."""
        return self.folders[0] / JOB_FILE

    def cache_roots(self, given: str | None) -> list[str]:
        """Possible directories or URLs of the caches, the likeliest first.

        Args:
            given: Value of `--cache`, which is then the only result.
        """
        recorded = [facts.cache_root for facts in self.facts if facts.cache_root]
        beside = [str(place.parent / "cache") for place in self.places]
        return list(dict.fromkeys([*recorded, *beside])) if given is None else [given]

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
    columns: tuple[Column, ...]

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
        if len(set(places)) < len(places):
            raise InputError("a run is named twice; name every run once")
        for folder, place in zip(folders, places, strict=True):
            facts, recipe = JobFacts.load(folder), folder / JOB_FILE
            content = read_recipe(recipe) if recipe.is_file() else {}
            job = str(place)
            if isinstance(content.pop("shard", None), str):  # equal for all shards of the job
                about = [computed_part(content), facts.model, [cell.name for cell in facts.cells]]
                job = json.dumps(about, sort_keys=True, default=str)
            jobs.setdefault(job, []).append((folder, place, facts))
        groups = tuple(RunGroup(*map(tuple, zip(*own, strict=True))) for own in jobs.values())
        return cls(groups, tuple(_columns(groups)))


def _columns(groups: Sequence[RunGroup]) -> list[Column]:
    """The columns in the order of the runs and of their cells."""
    found: list[Column] = []
    labels = [group.label for group in groups]
    for number, group in enumerate(groups):
        cells: dict[str, dict[str, CellFacts]] = {}
        for cell in (cell for facts in group.facts for cell in facts.cells):
            cells.setdefault(cell.name, {}).setdefault(cell.benchmark, cell)
        methods = [next(iter(one.values())).method for one in cells.values()]
        full = len(found) + methods.index(BASELINE) if BASELINE in methods else None
        same_name = labels.count(group.label) > 1
        for name, by_benchmark in cells.items():
            label, short = name, name
            if len(groups) > 1:
                label = f"{name} ({group.label})" + f" #{number + 1}" * same_name
                short = f"{name} [{number + 1}]"
            baseline = None if full == len(found) else full
            found.append(Column(number, name, label, short, by_benchmark, baseline))
    return found
