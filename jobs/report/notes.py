"""Notes printed below a table, and common questions of several runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Literal

import numpy as np

from jobs.results.answer_columns import Keys
from jobs.results.baselines import unpaired_notes
from jobs.results.cell_summary import CellSummary
from jobs.results.facts import JobFacts
from jobs.results.outcomes import Outcomes, places
from jobs.results.quantities import are_ranked, unread_notes
from tango_core.errors import InputError

On = Literal["common", "all"]

# Keys of a run's questions, by benchmark.
Asked = Mapping[str, Keys]


def cell_notes(cells: Sequence[CellSummary], runs: Iterable[JobFacts]) -> list[str]:
    """Limits of the numbers of some cells.

    Args:
        cells: Cells of one run or of several.
        runs: Facts of the runs.
    """
    skipped = [
        f"Skipped on {facts.model}: {entry.name}, retention {100 * entry.retention:g} %: "
        f"{entry.reason}."
        for facts in runs
        for entry in facts.skipped
    ]
    paired = [one.paired for cell in cells for one in cell.baselines.values() if one]
    few = [one for one in paired if one and one.too_few_clips]
    if few and are_ranked(cells):
        skipped.append(
            f"{len(few):,} of {len(paired):,} differences have no interval: the two methods differ "
            "in too few clips."
        )
    return [*dict.fromkeys(skipped), *unread_notes(cells), *unpaired_notes(cells)]


def lost_answers_notes(facts: JobFacts, num_found: int, folders: Sequence[Path]) -> list[str]:
    """Note about answers that are missing from a finished run's files.

    Args:
        facts: Facts of one run, or of the shards of one job together.
        num_found: Number of answers in the files.
        folders: Run directories.
    """
    if facts.num_answers is None or num_found >= facts.num_answers:
        return []
    return [
        f"Answers are lost: the files of {', '.join(map(str, folders))} hold {num_found} of "
        f"{facts.num_answers}, and every figure is over what is left; --resume asks the others "
        "again."
    ]


def common_questions(runs: Sequence[tuple[str, Asked]], on: On) -> dict[str, Keys]:
    """Common questions of all runs, for benchmarks on which the runs' questions differ.

    Args:
        runs: Name and questions of each run.
        on: Whether the runs are compared on these questions.

    Returns:
        Sorted keys by benchmark, without benchmarks for which all runs have the same questions.

    Raises:
        InputError: If runs to be compared on common questions have none of a benchmark.
    """
    found = {}
    for benchmark in dict.fromkeys(name for _, asked in runs for name in asked):
        parts = [asked[benchmark] for _, asked in runs if benchmark in asked]
        common = reduce(np.intersect1d, parts)
        if any(len(part) != len(common) for part in parts):
            found[benchmark] = common
        if on == "common" and not len(common):
            names = ", ".join(name for name, asked in runs if benchmark in asked)
            raise InputError(
                f"--on common: {names} have no question of {benchmark} in common; "
                "--on all sets them side by side"
            )
    return found


def question_notes(runs: Sequence[tuple[str, Asked]], common: Asked, on: On) -> list[str]:
    """Notes about questions that not all runs have."""
    sentences = []
    for benchmark, keys in common.items():
        counts = [(name, len(asked[benchmark])) for name, asked in runs if benchmark in asked]
        if on == "common":
            left_out = ", ".join(f"{count - len(keys):,} of {name}" for name, count in counts)
            sentences.append(
                f"Compared on the {len(keys):,} questions of {benchmark} that all {len(counts)} "
                f"runs were asked; left out: {left_out}."
            )
        else:
            listed = ", ".join(f"{count:,} in {name}" for name, count in counts)
            sentences.append(
                f"The runs were asked different questions of {benchmark}: {listed}; {len(keys):,} "
                "are in all of them. Accuracies of different questions are no comparison, and "
                "Perf. % is left out between them; --on common compares on common questions."
            )
    return sentences


def shown_notes(runs: Sequence[tuple[str, Mapping[str, Outcomes]]]) -> list[str]:
    """Notes about common questions with other prompts or frames than in the first run.

    Args:
        runs: Name and outcomes by benchmark of each run; 0 stands for a digest that older runs did
            not record.
    """
    sentences = []
    for benchmark in dict.fromkeys(name for _, outcomes in runs for name in outcomes):
        (first, reference), *others = [
            (name, outcomes[benchmark]) for name, outcomes in runs if benchmark in outcomes
        ]
        for name, outcomes in others:
            place = places(outcomes, reference)
            for what in ("prompts", "frames"):
                digests = outcomes.asked[what].to_numpy()
                theirs = np.append(reference.asked[what], np.uint64(0))[place]
                differ = int(((digests != 0) & (theirs != 0) & (digests != theirs)).sum())
                if differ:
                    sentences.append(
                        f"{name}: {differ:,} of {int((place >= 0).sum()):,} questions of "
                        f"{benchmark} were asked with other {what} than in {first}."
                    )
    return sentences
