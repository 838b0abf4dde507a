"""Group runs that are shards of one job, and find missing ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from jobs.config.overrides import computed_part, read_recipe
from jobs.results.answer_columns import Keys
from jobs.results.facts import JOB_FILE, JobFacts, WorkCounts
from pipeline.storage.copies import home_of
from tango_core.errors import InputError

# Index and number of a shard: every `number`-th clip of a job, starting with clip `index`.
Shard = tuple[int, int]


def _in_words(shard: Shard) -> str:
    """A shard in the format of `--shard`."""
    return "{}/{}".format(*shard)


@dataclass(frozen=True)
class RunGroup:
    """One run, or the shards of one job.

    Attributes:
        folders: Run directories.
        parts: Recorded facts of each run.
        shards: Shards of the runs; empty for a single run.
    """

    folders: tuple[Path, ...]
    parts: tuple[JobFacts, ...]
    shards: tuple[Shard, ...] = ()

    @cached_property
    def facts(self) -> JobFacts:
        """Combined facts of all runs of the group."""
        first = self.parts[0]
        if not self.shards:
            return first
        missing, number = self._missing()
        counts = [facts.num_answers for facts in self.parts]
        works = [facts.work for facts in self.parts if facts.work is not None]
        return merged(
            self.parts,
            run_id=f"{first.run_id} ({number - len(missing)} of {number} shards)",
            started_at=min(facts.started_at for facts in self.parts),
            peak_gib=max((f.peak_gib for f in self.parts if f.peak_gib is not None), default=None),
            shards=(),
            num_answers=None if None in counts else sum(one or 0 for one in counts),
            work=sum(works, WorkCounts()) if len(works) == len(self.parts) else None,
        )

    def notes(self, num_answers: int) -> list[str]:
        """Notes about lost answers, the merged runs, and the missing shards of their job.

        Args:
            num_answers: Answers that the files of all runs hold.
        """
        sentences, expected = [], self.facts.num_answers
        if expected is not None and num_answers < expected:
            sentences.append(
                f"Answers are lost: the files of {', '.join(map(str, self.folders))} hold "
                f"{num_answers} of {expected}, and every figure is over what is left; --resume "
                "asks the others again."
            )
        if not self.shards:
            return sentences
        named = zip(self.shards, self.parts, strict=True)
        names = ", ".join(f"{_in_words(shard)} ({facts.run_id})" for shard, facts in named)
        sentences.append(f"Merged shards of one job: {names}.")
        missing, number = self._missing()
        if missing:
            sizes = next((f.shards for f in self.parts if len(f.shards) == number), ())
            lost = "how many questions they hold is not recorded"
            if sizes:
                clips = sum(sizes[index].clips for index in missing)
                questions = sum(sizes[index].questions for index in missing)
                lost = f"{questions:,} questions about {clips:,} clips are in no table"
            listed = ", ".join(_in_words((index, number)) for index in missing)
            sentences.append(
                f"Missing shards: {listed} of the job of {self.parts[0].run_id}: {lost}."
            )
        return sentences

    def union(self, questions_asked: Callable[[Path], Mapping[str, Keys]]) -> dict[str, Keys]:
        """All questions of the group by benchmark.

        Args:
            questions_asked: Returns the keys of a run's questions by benchmark.

        Raises:
            InputError: If two runs have a common question.
        """
        total: dict[str, Keys] = {}
        for number, folder in enumerate(self.folders):
            for benchmark, keys in questions_asked(folder).items():
                known = total.get(benchmark, np.empty(0, np.uint64))
                total[benchmark] = np.union1d(known, keys)
                twice = len(known) + len(keys) - len(total[benchmark])
                if twice:
                    raise InputError(
                        f"{folder} (shard {_in_words(self.shards[number])}) holds {twice} "
                        f"questions of {benchmark} that another shard holds, too; the benchmark's "
                        "files have changed between the runs, report them one by one"
                    )
        return total

    def _missing(self) -> tuple[list[int], int]:
        """Indices of missing shards, and the total number of shards they refer to."""
        total = math.lcm(*(number for _, number in self.shards))
        held = {at for index, number in self.shards for at in range(index, total, number)}
        return [index for index in range(total) if index not in held], total


def merged(every: Sequence[JobFacts], **changes: Any) -> JobFacts:
    """Facts of several runs: texts one after the other, caches and skipped methods of all.

    Args:
        every: Facts of each run.
        **changes: Fields with other values.
    """

    def values(name: str) -> dict[Any, None]:
        return dict.fromkeys(getattr(facts, name) for facts in every)

    texts = {n: ", ".join(filter(None, values(n))) for n in ("model", "git_commit", "device")}
    lists = {
        name: tuple(dict.fromkeys(one for own in values(name) for one in own))
        for name in ("caches", "skipped")
    }
    # The runs may have run in parallel.
    return replace(every[0], **{"wall_s": None, **texts, **lists, **changes})


def grouped(folders: Sequence[Path]) -> list[RunGroup]:
    """Group runs that differ only in their shard, in order.

    Several runs of the same shard are separate groups. Runs with equal names stay separate too; see
    `told_apart`.

    Raises:
        FileNotFoundError: If a directory is not a finished run.
        InputError: If a directory is named twice, or shards of one job overlap.
    """
    resolved = [folder.resolve() for folder in folders]
    for at, folder in enumerate(folders):
        if resolved[at] in resolved[:at]:
            raise InputError(f"{folder} is named twice; name every run once")
    jobs: dict[str, list[tuple[Path, JobFacts, Shard]]] = {}
    every = [JobFacts.load(folder) for folder in folders]
    names = told_apart([facts.run_id for facts in every], folders)
    for folder, facts, name in zip(folders, every, names, strict=True):
        own = replace(facts, run_id=name)
        shard, job = _shard_and_job(folder, own)
        jobs.setdefault(job, []).append((folder, own, shard))
    groups = []
    for members in jobs.values():
        if len({shard for _, _, shard in members}) < 2:
            groups += [RunGroup((folder,), (facts,)) for folder, facts, _ in members]
            continue
        for (other, _, first), (folder, _, second) in combinations(members, 2):
            # They have a clip in common if the job is large enough.
            if (first[0] - second[0]) % math.gcd(first[1], second[1]) == 0:
                raise InputError(
                    f"{other} (shard {_in_words(first)}) and {folder} (shard {_in_words(second)}) "
                    "overlap: they are of one job and hold the same clips; name one of them"
                )
        order = sorted(members, key=lambda member: member[2][::-1])
        groups.append(RunGroup(*map(tuple, zip(*order, strict=True))))
    return sorted(groups, key=lambda group: min(map(folders.index, group.folders)))


def told_apart(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Unique names of runs; equal names get as much of their folder as needed."""
    parts = [str(home_of(folder.absolute())).split("/") for folder in folders]
    longest = max(map(len, parts), default=0)
    ends = (["/".join(own[-length:]) for own in parts] for length in range(2, longest + 1))
    every = (list(names), *ends)
    return next((found for found in every if len(set(found)) == len(found)), list(names))


def recipe_of(run_dir: Path) -> dict[str, Any]:
    """The resolved recipe of a run; empty if it has none."""
    path = run_dir / JOB_FILE
    return read_recipe(path) if path.is_file() else {}


def _shard_and_job(folder: Path, facts: JobFacts) -> tuple[Shard, str]:
    """Shard of a run (0/1 for a whole job), and a key equal only for shards of the same job."""
    recipe = recipe_of(folder)
    text = recipe.pop("shard", None)
    if not isinstance(text, str):
        return (0, 1), str(folder.resolve())
    index, _, number = text.partition("/")
    about = [computed_part(recipe), facts.kind, facts.model, [vars(cell) for cell in facts.cells]]
    return (int(index), int(number)), json.dumps(about, sort_keys=True, default=str)
