"""The cells of a recipe whose tokens an analysis looks at: made of their features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jobs.analysis.clips import JobClips
from jobs.config.recipe import RecipeError
from pipeline.cache.derived import on_cpu
from pipeline.methods import PlannedMethod, plan_methods
from tango_core.combination import Combination
from tango_core.compressors.base import Compressor
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class Cell:
    """A method with its options, as far as it acts before the language model.

    Attributes:
        name: As in answers and reports.
        method: Entry of `METHODS`.
        retention: Share of the tokens asked for, in (0, 1].
        cache: Name of its token cache; cells with equal compressors share one.
        compressor: What keeps the tokens.
    """

    name: str
    method: str
    retention: float
    cache: str
    compressor: Compressor

    @property
    def series(self) -> str:
        """The name without the retention."""
        return " ".join(word for word in self.name.split(" ") if not word.startswith("r="))


class JobCells:
    """The cells of a recipe that plan their tokens before the language model.

    Args:
        clips: Of the recipe.

    Raises:
        RecipeError: If the encoder lacks a signal that a method needs, or no cell is left.
    """

    def __init__(self, clips: JobClips) -> None:
        try:
            methods, compressors, _ = plan_methods(
                clips.built.methods,
                clips.model,
                clips.cache_root,
                features=None if clips.store is None else clips.store.cache,
            )
        except ValueError as error:
            raise RecipeError(str(error)) from error
        self.left_out = [one.name for one in methods if not _is_before(one)]
        self.cells = [
            Cell(one.name, one.method.name, one.retention, one.cache, compressors[one.cache])
            for one in methods
            if _is_before(one)
        ]
        if not self.cells:
            raise RecipeError(
                "no method of the recipe plans its tokens before the language model, so there is "
                "nothing to look at; add one, e.g. {name: topk, retention: 0.1}"
            )

    @cached_property
    def needs(self) -> frozenset[str]:
        """Signals that the methods of all cells read."""
        return frozenset[str]().union(*(cell.compressor.needs for cell in self.cells))

    @property
    def notes(self) -> list[str]:
        """What was left out, in a sentence."""
        if not self.left_out:
            return []
        names = ", ".join(self.left_out[:6]) + (", ..." if len(self.left_out) > 6 else "")
        return [
            f"{len(self.left_out)} cell(s) left out, which drop tokens inside the language model "
            f"or have no plan: {names}"
        ]

    def plans(self, features: VisualFeatures) -> dict[str, Combination]:
        """Cache -> plan of a clip, on the CPU.

        Args:
            features: Of the clip, with the signals of `needs`.
        """
        return {cell.cache: on_cpu(cell.compressor.plan(features)) for cell in self.cells}


def _is_before(method: PlannedMethod) -> bool:
    """Whether all that a method does is a plan before the language model."""
    compressor = method.method.compressor
    plans = compressor.has_plan or compressor.outer_retention >= 1
    return method.method.pruner is None and plans


def series_of(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Series -> its cells by retention, without cells that keep everything."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.compressor.outer_retention < 1:
            found.setdefault(cell.series, []).append(cell)
    return {name: sorted(own, key=lambda cell: cell.retention) for name, own in found.items()}


def common_retention(cells: Sequence[Cell], near: float = 0.1) -> float:
    """Of the retentions that almost as many series have as any, the one nearest to `near`."""
    own = [cell.retention for one in series_of(cells).values() for cell in one]
    most = max(map(own.count, own), default=0)
    common = [share for share in own if own.count(share) >= 0.8 * most]
    return min(common, key=lambda share: abs(share - near), default=1.0)
