"""Compare several runs: shards of one job merged, paired tests across runs, tables and a page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from jobs.config.overrides import computed_part
from jobs.report.page import Contents, render_html
from jobs.report.tables.breakdowns import breakdown_files, confusion_markdown, confusion_table
from jobs.report.tables.cells import CONTROLS_CAPTION, cell_files, control_sentences, controls_table
from jobs.report.tables.paper import paper_table
from jobs.results import quantities
from jobs.results.answer_columns import Keys
from jobs.results.cell_summary import CellSummary, RunSummary
from jobs.results.comparisons import (
    against_controls,
    full_index,
    unpaired_notes,
    with_baselines,
)
from jobs.results.facts import FACTS_FILE, JOB_FILE, JobFacts, WorkCounts, recipe_of
from jobs.results.measurements import failures_of
from jobs.results.outcomes import Outcomes, compare_cells
from jobs.results.summary import (
    Reduction,
    questions_asked,
    reduce_runs,
    save_summary,
    summarize_reduced,
    tables_of,
)
from pipeline.storage.copies import home_of
from tango_core.errors import InputError

REPORT_FILE = "report.html"

On = Literal["common", "all"]


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
            work=WorkCounts.total(works) if len(works) == len(self.parts) else None,
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
            lost = "how many questions they hold is not recorded"
            if sizes := next((f.shards for f in self.parts if len(f.shards) == number), None):
                clips = sum(sizes[index].clips for index in missing)
                questions = sum(sizes[index].questions for index in missing)
                lost = f"{questions:,} questions about {clips:,} clips are in no table"
            listed = ", ".join(_in_words((index, number)) for index in missing)
            sentences.append(
                f"Missing shards: {listed} of the job of {self.parts[0].run_id}: {lost}."
            )
        return sentences

    def questions(self) -> dict[str, Keys]:
        """Keys of all questions of the group by benchmark.

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


def _shard_and_job(folder: Path, facts: JobFacts) -> tuple[Shard, str]:
    """Shard of a run (0/1 for a whole job), and a key equal only for shards of the same job."""
    recipe = recipe_of(folder)
    text = recipe.pop("shard", None)
    if not isinstance(text, str):
        return (0, 1), str(folder.resolve())
    index, _, number = text.partition("/")
    about = [computed_part(recipe), facts.kind, facts.model, [vars(cell) for cell in facts.cells]]
    return (int(index), int(number)), json.dumps(about, sort_keys=True, default=str)


@dataclass(frozen=True)
class LoadedRun:
    """One run, or the shards of one job, loaded for a comparison."""

    group: RunGroup
    reduction: Reduction
    summary: RunSummary

    def outcomes(self, benchmark: str) -> Outcomes:
        """Outcomes of the questions of a benchmark, none if the run has no answers about it."""
        return self.reduction.outcomes.get(benchmark) or Outcomes(benchmark)


@dataclass(frozen=True)
class ComparedRuns:
    """One or several runs with all comparisons of their cells.

    Attributes:
        runs: The runs; shards of one job count as one run.
        run_of: The run of every cell.
        cells: All cells of all runs, in order.
        notes: Notes to print below the table.
        only: Questions that count, by benchmark; see `tables_of`.
    """

    runs: tuple[LoadedRun, ...]
    run_of: tuple[LoadedRun, ...]
    cells: tuple[CellSummary, ...]
    notes: tuple[str, ...]
    only: Mapping[str, Keys] | None

    def answers(self, index: int) -> pd.DataFrame:
        """Answers of a cell that count in the headline metric; see `Answers`."""
        cell = self.cells[index]
        outcomes = self.run_of[index].outcomes(cell.benchmark)
        counts, values = outcomes.count(outcomes.metrics[0], cell.name)
        asked = outcomes.asked[["key", "clip"]].assign(score=values)
        return asked[counts].set_index("key")

    def summary_and_facts(self, *, several: bool) -> tuple[RunSummary, JobFacts]:
        """Summary and facts of all runs together; merged shards have those of the whole job.

        Args:
            several: Whether the summary is one of several runs, even if there is one.
        """
        runs, every = self.runs, [run.group.facts for run in self.runs]
        if not several or (len(runs) == 1 and runs[0].group.shards):
            return replace(runs[0].summary, cells=self.cells), every[0]
        facts = merged(
            every,
            run_id=f"comparison of {len(runs)} runs",
            kind="comparison",
            cells=tuple(cell for facts in every for cell in facts.cells),
            mode=every[0].mode if len({facts.mode for facts in every}) == 1 else "throughput",
            started_at="",
            note=" ".join(dict.fromkeys(facts.note for facts in every if facts.note)),
            peak_gib=None,
        )
        named = ("run_id", "kind", "model", "mode", "note", "skipped")
        summary = RunSummary(
            **{name: getattr(facts, name) for name in named},
            runs=tuple(facts.run_id for run in runs for facts in run.group.parts),
            counts=quantities.QuestionCounts.total(run.summary.counts for run in runs),
            cache=quantities.CacheCounts.total(run.summary.cache for run in runs),
            failures=failures_of(run.reduction.measurements for run in runs),
            cells=self.cells,
        )
        return summary, facts


def compared_runs(
    run_dirs: Sequence[Path],
    *,
    baselines: Sequence[str] = (),
    on: On = "common",
    across: bool = True,
) -> ComparedRuns:
    """Read runs and compare their cells; nothing is written.

    Args:
        run_dirs: Finished runs; shards of one job are merged.
        baselines: Cells that every cell is compared with besides `full`; see `with_baselines`.
        on: `"common"`, or `"all"` to let every run count all of its questions.
        across: Whether cells are compared with `full` of another run if their own run has none.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If a baseline or group does not exist, shards overlap, or runs have no question
            in common.
    """
    groups = grouped(run_dirs)
    about_questions, only = _common(groups, on)
    runs = []
    for group in groups:
        reduction = reduce_runs(group.folders, group.facts.mode, only=only)
        runs.append(LoadedRun(group, reduction, summarize_reduced(reduction, group.facts)))
    cells = [cell for run in runs for cell in run.summary.cells]
    run_of = [run for run in runs for _ in run.summary.cells]

    def compare(one: int, other: int) -> quantities.Comparison | None:
        benchmark, facts = cells[one].benchmark, [run_of[at].group.facts for at in (one, other)]
        # Latencies are comparable only if both were measured in profile mode on equal devices.
        modes, devices = ({getattr(own, name) for own in facts} for name in ("mode", "device"))
        ours, theirs = (run_of[at].outcomes(benchmark) for at in (one, other))
        profile = modes == {"profile"} and len(devices) == 1
        return compare_cells(ours, cells[one].name, theirs, cells[other].name, profile=profile)

    for index, cell in enumerate(cells):
        full = full_index(index, cells) if across and cell.versus_full is None else None
        if full is not None and not cell.is_baseline:
            cells[index] = replace(cell, versus_full=compare(index, full))
    cells = with_baselines(cells, baselines, compare)
    skipped = [
        f"Skipped on {group.facts.model}: {entry.name}, retention {100 * entry.retention:g} %: "
        f"{entry.reason}."
        for group in groups
        for entry in group.facts.skipped
    ]
    notes = (
        *(note for run in runs for note in run.group.notes(run.reduction.num_answers)),
        *about_questions,
        *dict.fromkeys(skipped),
        *quantities.unread_notes(cells),
        *unpaired_notes(cells),
    )
    return ComparedRuns(tuple(runs), tuple(run_of), tuple(cells), notes, only)


def _common(groups: Sequence[RunGroup], on: On) -> tuple[list[str], Mapping[str, Keys] | None]:
    """Notes about questions that not all runs have, and the questions to compare on.

    Raises:
        InputError: If runs have no question in common, or shards have common questions.
    """
    notes: list[str] = []
    if len(groups) == 1 and not groups[0].shards:
        return notes, None
    asked = {group.facts.run_id: group.questions() for group in groups}
    only: dict[str, Keys] = {}
    for benchmark in dict.fromkeys(name for own in asked.values() for name in own):
        parts = {name: own[benchmark] for name, own in asked.items() if benchmark in own}
        common = reduce(np.intersect1d, parts.values())
        if on == "common" and not len(common):
            raise InputError(
                f"--on common: {', '.join(parts)} have no question of {benchmark} in common; "
                "--on all sets them side by side"
            )
        if all(len(part) == len(common) for part in parts.values()):
            continue
        only[benchmark] = common
        if on == "common":
            left_out = ", ".join(f"{len(k) - len(common):,} of {n}" for n, k in parts.items())
            notes.append(
                f"Compared on the {len(common):,} questions of {benchmark} that all {len(parts)} "
                f"runs were asked; left out: {left_out}."
            )
        else:
            listed = ", ".join(f"{len(keys):,} in {name}" for name, keys in parts.items())
            notes.append(
                f"The runs were asked different questions of {benchmark}: {listed}; "
                f"{len(common):,} are in all of them. Accuracies of different questions are no "
                "comparison, and Perf. % is left out between them; --on common compares on common "
                "questions."
            )
    return notes, only if on == "common" else None


def write_report(run_dir: Path) -> RunSummary:
    """Write `summary.json`, `plots/*.svg` and `report.html` of a run from its directory alone.

    Args:
        run_dir: Holds `job.yaml`, `facts.json` and `answers/*.parquet`.

    Raises:
        FileNotFoundError: If the directory is not a run or holds no answers.
    """
    return _write_page(compared_runs([run_dir], across=False), run_dir, several=False)


def report_runs(
    run_dirs: Sequence[Path],
    output: Path | None = None,
    *,
    published: bool = False,
    baselines: Sequence[str] = (),
    confusion: str | None = None,
    on: On = "common",
) -> Path:
    """Write tables (Markdown, CSV, LaTeX), plots and a page for one or several runs.

    Shards of one job are merged. Other runs are compared on their common questions.

    Args:
        run_dirs: Finished runs.
        output: Output directory; `None` writes into the run directory, for a single run only.
        published: Add the numbers of the Tango paper to `paper_table.*`.
        baselines: Cells that every cell is compared with besides `full`; see `with_baselines`.
        confusion: Group of the questions for `confusion.*`; `None` omits the files.
        on: `"common"`, or `"all"` to let every run count all of its questions.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If there is no run, several runs have no output directory, a baseline or group
            does not exist, shards overlap, or runs have no question in common.
    """
    if not run_dirs or (len(run_dirs) > 1 and output is None):
        raise InputError(
            f"report of {len(run_dirs)} runs: name at least one run, and a directory to write to "
            "with --output when there are several"
        )
    found = compared_runs(run_dirs, baselines=baselines, on=on, across=output is not None)
    paper = paper_table(found.cells, published=published, notes=found.notes)
    texts = {
        **cell_files(found.cells, found.notes),
        "paper_table.md": paper.markdown(),
        "paper_table.csv": paper.csv(),
        "paper_table.tex": paper.latex(),
        **breakdown_files(found.cells),
    }
    if confusion is not None:
        runs = [tables_of(run.group.folders, found.only) for run in found.runs]
        table = confusion_table(found.cells, runs, confusion)
        texts |= {
            "confusion.md": confusion_markdown(table, confusion),
            "confusion.csv": table.csv(),
        }
    folder = output or run_dirs[0]
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        _write(folder, name, text)
    _write_page(found, folder, several=output is not None)
    return folder / REPORT_FILE


def _write_page(found: ComparedRuns, folder: Path, *, several: bool) -> RunSummary:
    """Write the summary, the page with its plots, and `controls.md` if there is a control."""
    summary, facts = found.summary_and_facts(several=several)
    save_summary(summary, folder)
    ranked = quantities.are_ranked(found.cells)
    controlled = against_controls(found.cells, found.answers) if ranked else ()
    if controlled:
        table = controls_table(controlled).markdown()
        parts = [*control_sentences(controlled), table, CONTROLS_CAPTION]
        _write(folder, "controls.md", "\n\n".join(parts))
    files = {
        f"{own.run_id}/{name}" if several else name: (run_dir / name).read_text()
        for run in found.runs
        for run_dir, own in zip(run.group.folders, run.group.parts, strict=True)
        for name in (JOB_FILE, FACTS_FILE)
        if (run_dir / name).is_file()
    }
    page = Contents(summary, facts, files, found.notes, found.answers, controlled)
    _write(folder, REPORT_FILE, render_html(page, folder / "plots"))
    return summary


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
