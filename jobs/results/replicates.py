"""Results of the same cells with several trainings of a model.

A replicate is a run whose model was trained with another seed; benchmark, questions and cells are
the same. Two kinds of chance are kept apart. The questions: differences and their p values are of
scores averaged over the replicates, question by question, with whole clips as units. The training:
`spread` is the standard deviation of the replicates' values, and verdicts are counted by replicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from jobs.config.overrides import computed_part
from jobs.results.baselines import Setup, checkpoint_of, setup_of
from jobs.results.cell_summary import CellSummary
from jobs.results.comparisons import (
    AgainstControl,
    Answers,
    against_controls,
    compare_answers,
)
from tango_core.errors import InputError
from tango_core.metrics import Comparison
from tango_core.metrics.comparison import holm_adjusted

_MEANT = (
    "replicates are runs of one recipe with models that differ by their training alone (model.path)"
)
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
        against: Comparison of the mean scores with that control.
        verdicts: By replicate, the verdict against its own best control (`AgainstControl`);
            "" without a control.
        versus_blind: Comparison of the mean scores with those of the same method when it reads
            another clip's question (`question=other_clip`); `None` where there is none.
        blind_p_value: That of `versus_blind`, corrected for the methods of the retention (Holm).
    """

    cells: tuple[CellSummary, ...]
    versus_full: Comparison | None = None
    control: str | None = None
    against: AgainstControl | None = None
    verdicts: tuple[str, ...] = ()
    versus_blind: Comparison | None = None
    blind_p_value: float | None = None

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
    by_name = [
        {(cell.benchmark, cell.name): i for i, cell in enumerate(cells) if cell.headline}
        for cells, _ in runs
    ]
    common = [key for key in by_name[0] if all(key in names for names in by_name)]
    if not common:
        raise InputError(f"the runs have no cell in common; {_MEANT}")
    places = [tuple(names[key] for names in by_name) for key in common]
    cells = [tuple(run[0][i] for run, i in zip(runs, at, strict=True)) for at in places]
    for own in cells:
        _raise_if_no_replicates(own)
    means = [_mean_answers(runs, at) for at in places]
    full = {own[0].benchmark: at for at, own in enumerate(cells) if own[0].is_baseline}
    together = _against_controls([_mean_cell(own) for own in cells], means.__getitem__)
    alone = [_against_controls(*run) for run in runs]
    blind = _against_blind(cells, means)
    found = []
    for index, own in enumerate(cells):
        baseline = full.get(own[0].benchmark, index)
        versus_full = compare_answers(means[index], means[baseline]) if baseline != index else None
        single = [of_run.get(i) for of_run, i in zip(alone, places[index], strict=True)]
        verdicts = tuple(one[1].verdict if one else "" for one in single)
        control, against = together.get(index, (None, None))
        of_blind = blind.get(index, (None, None))
        found.append(ReplicatedCell(own, versus_full, control, against, verdicts, *of_blind))
    return tuple(found)


def levels_of(found: Sequence[ReplicatedCell]) -> list[list[ReplicatedCell]]:
    """Cells of methods and controls by benchmark and retention."""
    levels: dict[tuple[str, float], list[ReplicatedCell]] = {}
    for one in found:
        if not one.cell.is_baseline:
            key = one.cell.benchmark, round(one.cell.retention_requested, 9)
            levels.setdefault(key, []).append(one)
    return list(levels.values())


def _against_controls(
    cells: Sequence[CellSummary], answers: Answers
) -> dict[int, tuple[str, AgainstControl]]:
    """Best control and comparison with it, of every method that has a control, by its index."""
    place = {id(cell): index for index, cell in enumerate(cells)}
    return {
        place[id(method.cell)]: (level.control.series, method)
        for level in against_controls(cells, answers)
        for method in level.methods
    }


def _against_blind(
    cells: Sequence[Sequence[CellSummary]], means: Sequence[pd.DataFrame]
) -> dict[int, tuple[Comparison, float]]:
    """Comparison with the same method reading another clip's question, with its corrected p."""
    names = [(own[0].benchmark, own[0].name.replace(" question=own", "")) for own in cells]
    place = {name: index for index, name in enumerate(names)}
    levels: dict[tuple[str, float], dict[int, Comparison]] = {}
    for twin, (benchmark, name) in enumerate(names):
        index = place.get((benchmark, name.replace(" question=other_clip", "")), twin)
        versus = compare_answers(means[index], means[twin]) if index != twin else None
        if versus is not None:
            level = levels.setdefault((benchmark, cells[index][0].retention_requested), {})
            level[index] = versus
    found: dict[int, tuple[Comparison, float]] = {}
    for level in levels.values():
        p_values = holm_adjusted([one.p_value for one in level.values()])
        found |= dict(zip(level, zip(level.values(), p_values, strict=True), strict=True))
    return found


def _mean_cell(own: Sequence[CellSummary]) -> CellSummary:
    """The first replicate's cell with the mean headline."""
    first, mean = own[0], ReplicatedCell(tuple(own)).mean
    return replace(first, scores={first.metric: replace(first.scores[first.metric], value=mean)})


def _mean_answers(runs: Sequence[Measured], at: Sequence[int]) -> pd.DataFrame:
    """Scores of one cell averaged over the replicates, on the questions that all were asked."""
    every = [answers(index) for (_, answers), index in zip(runs, at, strict=True)]
    scores = pd.concat([one["score"] for one in every], axis=1, join="inner")
    if scores.empty:
        name = runs[0][0][at[0]].name
        raise InputError(f"the runs were asked no common question of cell {name!r}")
    return every[0].loc[scores.index].assign(score=scores.mean(axis=1))


# Keys of a recipe's `model` that are the training's, the machine's, or what facts know better.
_MAY_DIFFER = {"name", "path", "revision", "num_frames", "dtype", "device", "compile", "sinks"}
_MAY_DIFFER |= {"encode_batch", "saliency_from"}
_OF_THE_BENCHMARK = ("split", "seed")


def _raise_if_no_replicates(own: Sequence[CellSummary]) -> None:
    """Refuse cells that differ in more than the training of their model, or not even in that.

    Args:
        own: The same cell of every run; what one does not know is not compared.

    Raises:
        ValueError: In one line that says what differs, or which runs are of one checkpoint.
    """
    for name, values in zip(Setup._fields, zip(*map(setup_of, own), strict=True), strict=True):
        if name != "checkpoint":
            _raise_if_several(name, values)
    first: dict[str, int] = {}
    for number, checkpoint in enumerate(map(checkpoint_of, own), 1):
        if checkpoint and first.setdefault(checkpoint, number) != number:
            raise InputError(
                f"run {first[checkpoint]} and run {number} are of one checkpoint "
                f"({checkpoint}): the same training again is no replicate; name one run per "
                "training"
            )


def raise_if_other_recipes(recipes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse runs whose recipes ask for other questions or another input of the model.

    Args:
        recipes: Resolved recipe of every run; `{}` where there is none, which is not compared.

    Raises:
        ValueError: In one line that names the setting.
    """
    sections = [computed_part(recipe) for recipe in recipes]
    models = [section.get("model") or {} for section in sections]
    for key in sorted({key for model in models for key in model} - _MAY_DIFFER):
        values = [str(model.get(key, "not set")) if model else None for model in models]
        _raise_if_several(f"model.{key}", values)
    for key in _OF_THE_BENCHMARK:
        asked = [(section.get("benchmark") or {}).get(key) for section in sections]
        _raise_if_several(f"benchmark.{key}", asked)


def _raise_if_several(what: str, values: Sequence[object]) -> None:
    """Refuse runs that differ in a setting; `None` is unknown."""
    first: dict[object, int] = {}
    for number, value in enumerate(values, 1):
        if value is not None:
            first.setdefault(value, number)
    if len(first) > 1:
        listed = ", ".join(
            f"{'as published' if value == '' else value} in run {number}"
            for value, number in first.items()
        )
        raise InputError(f"{what} differs: {listed}; {_MEANT}")
