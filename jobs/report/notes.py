"""Notes printed below a table, and common questions of several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Literal

import numpy as np

from jobs.report.formatting import DASH, Table, corrected_p, percent, points
from jobs.results.answer_columns import Keys
from jobs.results.baselines import unpaired_notes
from jobs.results.cell_summary import CellSummary, counted_unit, metric_title
from jobs.results.comparisons import (
    AgainstControl,
    ControlledRetention,
    RightWrong,
)
from jobs.results.facts import JobFacts
from jobs.results.outcomes import Outcomes, places
from jobs.results.quantities import are_ranked, rule_notes, unread_notes
from jobs.results.summary import Reduction
from tango_core.errors import InputError
from tango_core.metrics import ACCURACY, Comparison


def cell_notes(cells: Sequence[CellSummary], runs: Iterable[JobFacts]) -> list[str]:
    """What must be known about the numbers of cells.

    Args:
        cells: Cells of one run or of several.
        runs: Facts of the runs.
    """
    return [
        *skipped_notes(runs),
        *unread_notes(cells),
        *unpaired_notes(cells),
        *(few_clips_notes(cells) if are_ranked(cells) else []),
        *incomplete_group_notes(cells),
        *rule_notes(cells),
    ]


def few_clips_notes(cells: Iterable[CellSummary]) -> list[str]:
    """Notes about differences without an interval because too few clips changed."""
    few: dict[str, list[Comparison]] = {}
    totals: Counter[str] = Counter()
    for cell in cells:
        for versus in (cell.versus_full, *cell.versus.values()):
            if versus and versus.paired:
                totals[cell.benchmark] += 1
                if versus.paired.too_few_clips:
                    few.setdefault(cell.benchmark, []).append(versus.paired)
    sentences = []
    for name, found in few.items():
        most, clips = max(one.num_changed_clips for one in found), found[0].num_clips
        changed = f"at most {most:,}" if most else "none"
        sentences.append(
            f"{len(found):,} of {totals[name]:,} differences on {name} have no interval: the two "
            f"methods differ in {changed} of {clips:,} clips, too few clips to say how sure they "
            "are."
        )
    return sentences


def incomplete_group_notes(cells: Iterable[CellSummary]) -> list[str]:
    """Notes about groups without a score because some of their questions were not asked."""
    sentences = []
    for cell in cells:
        found = cell.headline
        if counted_unit(cell) != "group":
            continue
        missing = cell.counts.num_clips - (found.num_questions if found else 0)
        if missing > 0:
            sentences.append(
                f"{missing:,} of {cell.counts.num_clips:,} groups of {cell.benchmark} are "
                "incomplete, as not all of their questions were asked; they are in no "
                f"{metric_title(cell)}."
            )
    return list(dict.fromkeys(sentences))


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


def skipped_notes(runs: Iterable[JobFacts]) -> list[str]:
    """Notes about methods that were skipped because the model does not support them."""
    sentences = (
        f"Skipped on {facts.model}: {entry.name}, retention {100 * entry.retention:g} %: "
        f"{entry.reason}."
        for facts in runs
        for entry in facts.skipped
    )
    return list(dict.fromkeys(sentences))


On = Literal["common", "all"]

# Sorted digests of a run's questions, by benchmark.
Asked = Mapping[str, Keys]


def common_questions(runs: Sequence[tuple[str, Asked]], on: On) -> dict[str, Keys]:
    """Common questions of all runs, for benchmarks on which the runs' questions differ.

    Args:
        runs: Name and questions of each run.
        on: Whether the runs are compared on these questions.

    Returns:
        Sorted digests by benchmark, without benchmarks for which all runs have the same questions.

    Raises:
        ValueError: If runs to be compared on common questions have none of a benchmark.
    """
    found = {}
    for benchmark in dict.fromkeys(name for _, asked in runs for name in asked):
        parts = [asked[benchmark] for _, asked in runs if benchmark in asked]
        common = reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), parts)
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
    """Notes about common questions with different prompts or frames.

    Every run is compared with the first run of its benchmark.

    Args:
        runs: Name and outcomes by benchmark of each run.
    """
    sentences: list[str] = []
    silent: dict[str, dict[str, None]] = {"prompts": {}, "frames": {}}
    for benchmark in dict.fromkeys(name for _, outcomes in runs for name in outcomes):
        own = [(name, outcomes[benchmark]) for name, outcomes in runs if benchmark in outcomes]
        if len(own) < 2:
            continue
        first, reference = own[0]
        for name, outcomes in own:
            place = places(outcomes, reference)
            for what in silent:
                digests = outcomes.asked[what]
                if not digests.any():
                    silent[what][name] = None
                theirs = np.append(reference.asked[what], np.uint64(0))[place]
                differ = int(((digests != 0) & (theirs != 0) & (digests != theirs)).sum())
                if differ:
                    sentences.append(
                        f"{name}: {differ:,} of {int((place >= 0).sum()):,} questions of "
                        f"{benchmark} were asked with other {what} than in {first}."
                    )
    together: dict[str, list[str]] = {}
    for what, names in silent.items():
        if names:
            together.setdefault(", ".join(names), []).append(what)
    for listed, kinds in together.items():
        sentences.append(
            f"Not recorded: the {' and '.join(kinds)} of {listed}; whether they were the same is "
            "unknown."
        )
    return sentences


def control_sentences(found: Sequence[ControlledRetention]) -> list[str]:
    """Comparisons with the best control, one sentence per retention."""
    several = len({one.control.benchmark for one in found}) > 1
    return [_sentence(one, several) for one in found]


def right_wrong(reduction: Reduction, cell: CellSummary) -> RightWrong:
    """Correctness of a cell's answers that count in the headline metric."""
    outcomes = reduction.outcomes.get(cell.benchmark) or Outcomes(cell.benchmark)
    headline = outcomes.metrics[0]
    counts, values = outcomes.count(headline, cell.name)
    keys, clips = (outcomes.asked[name][counts] for name in ("key", "clip"))
    return RightWrong(keys, clips, values[counts], headline.right_wrong)


def controls_table(found: Iterable[ControlledRetention]) -> Table:
    """Table of all comparisons with controls, with accuracy by VTC-Bench's filter, in %."""
    rows = []
    for one in found:
        for method in one.methods:
            parts, control = method.filtered, one.control
            row = {
                "benchmark": control.benchmark,
                "asked %": f"{100 * one.retention:g}",
                "best control": control.series,
                "kept %": percent(control.equivalent_retention),
                "method": method.cell.series,
                "kept % ": percent(method.cell.equivalent_retention),
                "difference": _difference(method),
                "p (Holm)": corrected_p(method.p_value),
                "where the control fails": DASH,
                "where it does not": DASH,
            }
            if parts:
                row["where the control fails"] = f"{percent(parts.hard)} ({parts.num_hard})"
                row["where it does not"] = f"{percent(parts.easy)} ({parts.num_easy})"
            rows.append(row)
    return replace(Table.of(rows), text_columns=5)


CONTROLS_CAPTION = (
    "Difference to the best control at the retention in points, paired by question; p by "
    "whole clips, corrected for the methods of the retention (Holm). The last two columns are "
    "accuracies on questions that all tokens answer rightly, where the control fails and where "
    "it does not, with the number of questions. A control called full with a setting of the "
    "model has all tokens of a smaller input, as a share of those of the methods' input."
)


def _sentence(one: ControlledRetention, several: bool) -> str:
    """Summarise the comparisons of one retention in a sentence."""
    where = f" on {one.control.benchmark}" if several else ""
    if size := one.methods[0].cell.input_size:
        where += f" with {size}"
    control = one.control
    value = control.headline.value if control.headline else None
    what = "right" if control.metric == ACCURACY.name else metric_title(control)
    # The share of a smaller input is one of the methods' input.
    of_what = " of the whole input" if control.is_baseline else ""
    parts = [
        f"At {100 * one.retention:g} %{where} the best control is {control.series} "
        f"({percent(value)} % {what} with {percent(control.equivalent_retention)} % of the "
        f"tokens{of_what})."
    ]
    words = {"better": "Better than it", "worse": "Worse", "open": "No difference shown"}
    for verdict, word in words.items():
        own = [m for m in one.methods if m.verdict == verdict]
        if own:
            parts.append(f"{word}: {', '.join(map(_compared, own))}.")
    return " ".join(parts)


def _compared(method: AgainstControl) -> str:
    """A method with its difference to the control, and its tokens where they are not equal."""
    kept = ""
    if method.equal_tokens is False:
        kept = f" with {percent(method.cell.equivalent_retention)} % of the tokens"
    return f"{method.cell.series} ({_difference(method)}{kept})"


def _difference(method: AgainstControl) -> str:
    """The difference to the control in points."""
    return points(method.versus.difference if method.versus else None)
