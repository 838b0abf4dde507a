"""Group runs that are shards of one job, and find missing ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jobs.config.identity import computed_part
from jobs.config.overrides import read_recipe
from jobs.results.facts import JOB_FILE, JobFacts, ShardSize, WorkCounts
from pipeline.progress.parts import Digests
from pipeline.storage.copies import home_of
from tango_core.errors import InputError

_NAMED = 10


@dataclass(frozen=True)
class Shard:
    """Every `number`-th clip of a job, from the `index`-th."""

    index: int
    number: int

    def overlaps(self, other: Shard) -> bool:
        """Whether some clip of a long enough job is in both."""
        return (self.index - other.index) % math.gcd(self.number, other.number) == 0

    def __str__(self) -> str:
        """As `--shard` takes it."""
        return f"{self.index}/{self.number}"


@dataclass(frozen=True)
class RunGroup:
    """One run, or the shards of one job.

    Attributes:
        folders: Run directories.
        facts: What each run says about itself.
        shards: Of several runs, their shards; empty for a run that stands for itself.
    """

    folders: tuple[Path, ...]
    facts: tuple[JobFacts, ...]
    shards: tuple[Shard, ...] = ()

    def merged_facts(self) -> JobFacts:
        """What holds for all runs of the group together."""
        first = self.facts[0]
        if not self.shards:
            return first
        missing, number = self._missing()
        return replace(
            first,
            run_id=f"{first.run_id} ({number - len(missing)} of {number} shards)",
            wall_s=None,  # they may have run side by side
            started_at=min(facts.started_at for facts in self.facts),
            git_commit=joined(facts.git_commit for facts in self.facts),
            device=joined(facts.device for facts in self.facts),
            caches=tuple(dict.fromkeys(c for facts in self.facts for c in facts.caches)),
            peak_gib=max((f.peak_gib for f in self.facts if f.peak_gib is not None), default=None),
            shards=(),
            num_answers=(
                None
                if any(facts.num_answers is None for facts in self.facts)
                else sum(facts.num_answers or 0 for facts in self.facts)
            ),
            work=_work_of(self.facts),
        )

    def notes(self) -> list[str]:
        """Which runs were merged, and what is missing of their job."""
        if not self.shards:
            return []
        names = ", ".join(
            f"{shard} ({facts.run_id})"
            for shard, facts in zip(self.shards, self.facts, strict=True)
        )
        sentences = [f"Merged shards of one job: {names}."]
        missing, number = self._missing()
        if missing:
            listed = ", ".join(f"{index}/{number}" for index in missing[:_NAMED])
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            sentences.append(
                f"Missing shards: {listed}{more} of the job of {self.facts[0].run_id}: "
                f"{_questions_of(missing, number, self.facts)}."
            )
        return sentences

    def union(self, asked: Sequence[Mapping[str, Digests]]) -> dict[str, Digests]:
        """All questions of the group, benchmark by benchmark.

        Args:
            asked: Benchmark -> sorted digests of the questions of each run.

        Raises:
            ValueError: If two runs were asked the same question.
        """
        total: dict[str, Digests] = {}
        for number, run in enumerate(asked):
            for benchmark, keys in run.items():
                known = total.get(benchmark, np.empty(0, "S16"))
                total[benchmark] = np.union1d(known, keys)
                twice = len(known) + len(keys) - len(total[benchmark])
                if twice:
                    raise InputError(
                        f"{self.folders[number]} (shard {self.shards[number]}) holds {twice} "
                        f"questions of {benchmark} that another shard holds, too; the benchmark's "
                        "files have changed between the runs, report them one by one"
                    )
        return total

    def _missing(self) -> tuple[list[int], int]:
        """Shards that no run has, and the number that they are counted in."""
        number = math.lcm(*(shard.number for shard in self.shards))
        there = {
            index for shard in self.shards for index in range(shard.index, number, shard.number)
        }
        return [index for index in range(number) if index not in there], number


def _work_of(runs: Sequence[JobFacts]) -> WorkCounts | None:
    """What all runs did; `None` if one does not say."""
    told = [facts.work for facts in runs if facts.work is not None]
    return sum(told, WorkCounts()) if len(told) == len(runs) else None


def grouped(folders: Sequence[Path]) -> list[RunGroup]:
    """The runs in order, those that differ in their shard only as one.

    Runs of one and the same shard are no parts of a whole; they stay apart. So do runs of one name,
    see `told_apart`.

    Raises:
        FileNotFoundError: If a directory is not a finished run.
        ValueError: If a directory is named twice, or shards of one job overlap.
    """
    again = [folder for at, folder in enumerate(folders) if _same(folder, folders[:at])]
    if again:
        raise InputError(f"{again[0]} is named twice; name every run once")
    jobs: dict[str, list[tuple[Path, JobFacts, Shard]]] = {}
    every = [JobFacts.load(folder) for folder in folders]
    names = told_apart([facts.run_id for facts in every], folders)
    for folder, loaded, name in zip(folders, every, names, strict=True):
        facts = replace(loaded, run_id=name)
        shard, job = _shard_and_job(folder, facts)
        jobs.setdefault(job, []).append((folder, facts, shard))
    groups = []
    for members in jobs.values():
        if len({shard for _, _, shard in members}) < 2:
            groups += [RunGroup((folder,), (facts,)) for folder, facts, _ in members]
            continue
        for at, (folder, _, shard) in enumerate(members):
            for other, _, other_shard in members[:at]:
                if shard.overlaps(other_shard):
                    raise InputError(
                        f"{other} (shard {other_shard}) and {folder} (shard {shard}) overlap: they "
                        "are of one job and hold the same clips; name one of them"
                    )
        order = sorted(members, key=lambda member: (member[2].number, member[2].index))
        parts = zip(*order, strict=True)
        groups.append(RunGroup(*map(tuple, parts)))
    first = {folder: at for at, folder in enumerate(folders)}
    return sorted(groups, key=lambda group: min(first[folder] for folder in group.folders))


def told_apart(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Names of runs; with as much of their folders as is needed where two began in one second."""
    parts = [str(home_of(folder.absolute())).split("/") for folder in folders]
    longest = max(map(len, parts), default=0)
    ends = (["/".join(own[-length:]) for own in parts] for length in range(2, longest + 1))
    every = (list(names), *ends)
    return next((found for found in every if len(set(found)) == len(found)), list(names))


def joined(texts: Iterable[str]) -> str:
    """Different texts with commas between."""
    return ", ".join(dict.fromkeys(text for text in texts if text))


def _same(folder: Path, others: Sequence[Path]) -> bool:
    """Whether a directory is among others, however it is written."""
    return folder.resolve() in {other.resolve() for other in others}


def _shard_and_job(folder: Path, facts: JobFacts) -> tuple[Shard, str]:
    """Shard of a run, and what is equal in all shards of its job alone; 0/1 for a whole job."""
    path = folder / JOB_FILE
    recipe = read_recipe(path) if path.is_file() else {}
    text = recipe.pop("shard", None)
    if not isinstance(text, str):
        return Shard(0, 1), str(folder.resolve())
    index, _, number = text.partition("/")
    about = [computed_part(recipe), facts.kind, facts.model, [vars(cell) for cell in facts.cells]]
    return Shard(int(index), int(number)), json.dumps(about, sort_keys=True, default=str)


def _questions_of(missing: Sequence[int], number: int, runs: Sequence[JobFacts]) -> str:
    """How many questions the missing shards hold, if a run of the job has written it down."""
    sizes: tuple[ShardSize, ...] = next((f.shards for f in runs if len(f.shards) == number), ())
    if not sizes:
        return "how many questions they hold is not recorded"
    clips = sum(sizes[index].clips for index in missing)
    questions = sum(sizes[index].questions for index in missing)
    return f"{questions:,} questions about {clips:,} clips are in no table"
