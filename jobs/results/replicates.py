"""Results of the same cells with several trainings of a model.

A replicate is a run whose model was trained with another seed; benchmark, questions and cells are
the same. Two kinds of chance are kept apart. The questions: differences and their p values are of
scores averaged over the replicates, question by question, with whole clips as units. The training:
`spread` is the standard deviation of the replicates' values, and verdicts are counted by replicate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

import numpy as np

from jobs.config.identity import computed_part
from jobs.results.baselines import checkpoint_of
from jobs.results.cell_summary import CellSummary
from jobs.results.comparisons import Answers, RightWrong, against_controls
from tango_core.analysis.correlation import rank_correlation
from tango_core.benchmarks.protocols.protocol import harness_of
from tango_core.compressors import CONTROLS
from tango_core.errors import InputError
from tango_core.metrics import Comparison, compare_paired
from tango_core.metrics.paired_tests import LEVEL, holm_adjusted

# The cells of a run, and what each of them answered.
Measured = tuple[Sequence[CellSummary], Answers]


@dataclass(frozen=True)
class ReplicatedCell:
    """A cell of every replicate.

    Attributes:
        cells: By replicate.
        versus_full: Mean scores against those of all tokens; `None` where these were not measured.
        control: The best control at the retention, by its mean; `None` where there is none, and
            for all tokens and for the controls.
        versus_control: Mean scores against those of that control.
        p_value: That of `versus_control`, corrected for the number of methods at the retention
            (Holm); `None` without a control.
        verdicts: By replicate, the verdict against its own best control (`AgainstControl`);
            "" without a control.
    """

    cells: tuple[CellSummary, ...]
    versus_full: Comparison | None = None
    control: str | None = None
    versus_control: Comparison | None = None
    p_value: float | None = None
    verdicts: tuple[str, ...] = ()

    @property
    def cell(self) -> CellSummary:
        """The first replicate's."""
        return self.cells[0]

    @property
    def values(self) -> tuple[float, ...]:
        """Headline by replicate."""
        return tuple(cell.headline.value for cell in self.cells if cell.headline is not None)

    @property
    def mean(self) -> float:
        """Mean headline over the replicates."""
        return fmean(self.values)

    @property
    def spread(self) -> float:
        """Standard deviation of the headline over the replicates, with n - 1."""
        return stdev(self.values)

    @property
    def kept(self) -> float | None:
        """Mean share of the tokens, averaged over the layers; `None` if one is not known."""
        shares = [cell.equivalent_retention for cell in self.cells]
        known = [share for share in shares if share is not None]
        return fmean(known) if len(known) == len(shares) else None

    @property
    def verdict(self) -> str:
        """`"better"`, `"worse"` or `"open"` on the mean scores; "" without a control."""
        if self.versus_control is None or self.p_value is None:
            return ""
        if self.p_value >= LEVEL:
            return "open"
        return "better" if self.versus_control.difference > 0 else "worse"


@dataclass(frozen=True)
class Agreement:
    """Whether replicates put the cells of one retention in one order.

    Attributes:
        benchmark: Entry of `BENCHMARKS`.
        retention: Asked for.
        correlations: Spearman's rho of every pair of replicates; empty for fewer than three cells.
        firsts: By replicate, the series with the highest headline.
    """

    benchmark: str
    retention: float
    correlations: tuple[float, ...]
    firsts: tuple[str, ...]


def replicated_cells(runs: Sequence[Measured]) -> tuple[ReplicatedCell, ...]:
    """Put the cells of several runs together.

    Args:
        runs: Two or more; their cells and questions may differ, and what all have in common counts.

    Returns:
        In the order of the first run's cells.

    Raises:
        ValueError: If there are fewer than two runs, they share no cell or no question, are of
            different models or settings, or two are of one checkpoint.
    """
    if len(runs) < 2:
        raise InputError(f"replicates need two runs or more, got {len(runs)}")
    models = sorted({cell.model for cells, _ in runs for cell in cells if cell.model})
    if len(models) > 1:
        raise InputError(f"replicates are runs of one model, got {', '.join(models)}")
    places = _common(runs)
    if not places:
        raise InputError(
            "the runs have no cell in common; replicates are runs of one recipe with models that "
            "differ by their training alone (model.path)"
        )
    cells = [tuple(run[0][i] for run, i in zip(runs, at, strict=True)) for at in places]
    raise_if_no_replicates(cells)
    own_verdicts = [_verdicts(run) for run in runs]
    means = [_mean_answers(runs, at) for at in places]
    whole = {
        own[0].benchmark: mean for own, mean in zip(cells, means, strict=True) if own[0].is_baseline
    }
    found = [
        ReplicatedCell(
            own,
            None if own[0].is_baseline else _compare(mean, whole.get(own[0].benchmark)),
            verdicts=tuple(
                verdicts.get(index, "") for verdicts, index in zip(own_verdicts, at, strict=True)
            ),
        )
        for own, mean, at in zip(cells, means, places, strict=True)
    ]
    return _with_controls(found, means)


def agreements(found: Sequence[ReplicatedCell]) -> tuple[Agreement, ...]:
    """How far the replicates agree about the order of the cells, by benchmark and retention."""
    return tuple(
        Agreement(
            group[0].cell.benchmark,
            group[0].cell.retention_requested,
            tuple(rho for rho in _pairwise(group) if rho is not None),
            tuple(
                max(group, key=lambda one: one.values[number]).cell.series
                for number in range(len(group[0].cells))
            ),
        )
        for group in _levels(found)
        if not group[0].cell.is_baseline
    )


def _pairwise(group: Sequence[ReplicatedCell]) -> Iterator[float | None]:
    """Rank correlation of every pair of replicates."""
    for first, second in combinations(range(len(group[0].cells)), 2):
        yield rank_correlation(
            [one.values[first] for one in group], [one.values[second] for one in group]
        )


def _common(runs: Sequence[Measured]) -> list[tuple[int, ...]]:
    """Where the cells are that all runs have and that have a headline, by run."""
    by_name = [
        {(cell.benchmark, cell.name): i for i, cell in enumerate(cells) if cell.headline}
        for cells, _ in runs
    ]
    return [
        tuple(names[key] for names in by_name)
        for key in by_name[0]
        if all(key in names for names in by_name)
    ]


def _verdicts(run: Measured) -> dict[int, str]:
    """Verdict of every method of a run that has a control, by the index of its cell."""
    cells, answers = run
    place = {id(cell): index for index, cell in enumerate(cells)}
    return {
        place[id(method.cell)]: method.verdict
        for level in against_controls(cells, answers)
        for method in level.methods
    }


def _mean_answers(runs: Sequence[Measured], at: Sequence[int]) -> RightWrong:
    """Scores of one cell averaged over the replicates, on the questions that all were asked."""
    every = [answers(index) for (_, answers), index in zip(runs, at, strict=True)]
    common = reduce(np.intersect1d, [one.questions for one in every])
    if not len(common):
        name = runs[0][0][at[0]].name
        raise InputError(f"the runs were asked no common question of cell {name!r}")
    scores = [one.on(common)[0] for one in every]
    return RightWrong(common, every[0].on(common)[1], np.mean(scores, axis=0), right_wrong=False)


def _compare(own: RightWrong, other: RightWrong | None) -> Comparison | None:
    """Two cells on the questions that both have."""
    if other is None:
        return None
    common = np.intersect1d(own.questions, other.questions)
    scores, clips = own.on(common)
    return compare_paired(scores, other.on(common)[0], clips)


def _levels(found: Sequence[ReplicatedCell]) -> list[list[ReplicatedCell]]:
    """The cells by benchmark and retention, in the order of the cells."""
    levels: dict[tuple[str, float], list[ReplicatedCell]] = {}
    for one in found:
        key = one.cell.benchmark, round(one.cell.retention_requested, 9)
        levels.setdefault(key, []).append(one)
    return list(levels.values())


def _with_controls(
    found: Sequence[ReplicatedCell], means: Sequence[RightWrong]
) -> tuple[ReplicatedCell, ...]:
    """The cells, methods with their comparison with the best control of their retention."""
    answers = {id(one): mean for one, mean in zip(found, means, strict=True)}
    compared: dict[int, ReplicatedCell] = {}
    for group in _levels(found):
        controls = [one for one in group if one.cell.method in CONTROLS]
        methods = [one for one in group if one not in controls and not one.cell.is_baseline]
        if not controls:
            continue
        best = max(controls, key=lambda one: one.mean)
        versus = [_compare(answers[id(one)], answers[id(best)]) for one in methods]
        adjusted = iter(holm_adjusted([one.p_value for one in versus if one is not None]))
        for one, comparison in zip(methods, versus, strict=True):
            compared[id(one)] = ReplicatedCell(
                one.cells,
                one.versus_full,
                best.cell.series,
                comparison,
                None if comparison is None else next(adjusted),
                one.verdicts,
            )
    return tuple(compared.get(id(one), one) for one in found)


# Keys of a recipe's `model` that are the training's, the machine's, or what facts know better.
_MAY_DIFFER = {"name", "path", "revision", "num_frames", "dtype", "device", "compile", "sinks"}
_MAY_DIFFER |= {"encode_batch", "saliency_from"}
_OF_THE_BENCHMARK = ("split", "seed")


def raise_if_no_replicates(cells: Sequence[Sequence[CellSummary]]) -> None:
    """Refuse cells that differ in more than the training of their model, or not even in that.

    Args:
        cells: The same cell of every run, per cell; what one does not know is not compared.

    Raises:
        ValueError: In one line that says what differs, or which runs are of one checkpoint.
    """
    for own in cells:
        _raise_if_several("num_frames", [cell.num_frames for cell in own])
        _raise_if_several("input size", [cell.input_size or "as published" for cell in own])
        _raise_if_several("protocol", [harness_of(cell.protocol) or None for cell in own])
        _raise_if_several("size (layers, width)", [cell.llm_shape for cell in own])
    for own in cells:
        for (at, one), (other_at, other) in combinations(enumerate(own, 1), 2):
            if checkpoint_of(one) and checkpoint_of(one) == checkpoint_of(other):
                raise InputError(
                    f"run {at} and run {other_at} are of one checkpoint "
                    f"({checkpoint_of(one)[:12]}): the same training again is no replicate; name "
                    "one run per training"
                )


def raise_if_other_recipes(recipes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse runs whose recipes ask for other questions or another input of the model.

    Args:
        recipes: Resolved recipe of every run; `{}` where there is none, which is not compared.

    Raises:
        ValueError: In one line that names the setting.
    """
    sections = [computed_part(recipe) for recipe in recipes]
    models = [_mapping(section.get("model")) for section in sections]
    for key in sorted({key for model in models for key in model} - _MAY_DIFFER):
        values = [str(model.get(key, "not set")) if model else None for model in models]
        _raise_if_several(f"model.{key}", values)
    for key in _OF_THE_BENCHMARK:
        asked = [_mapping(section.get("benchmark")).get(key) for section in sections]
        _raise_if_several(f"benchmark.{key}", asked)


def _mapping(section: object) -> Mapping[str, Any]:
    """A section of a recipe; empty if it is none."""
    return section if isinstance(section, Mapping) else {}


def _raise_if_several(what: str, values: Sequence[object]) -> None:
    """Refuse runs that differ in a setting; `None` is unknown."""
    first: dict[object, int] = {}
    for number, value in enumerate(values, 1):
        if value is not None:
            first.setdefault(value, number)
    if len(first) > 1:
        listed = ", ".join(f"{value} in run {number}" for value, number in first.items())
        raise InputError(
            f"{what} differs: {listed}; replicates are runs of one recipe with models that differ "
            "by their training alone (model.path)"
        )
