"""What a pruning method is: a `Compressor` before the language model, a `LayerPruner` inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tango_core.combination import Combination, Drawing
from tango_core.compressors.finite import raise_if_missing, raise_if_not_finite, read_checked
from tango_core.compressors.layer_context import LayerContext, Pruned
from tango_core.compressors.options import raise_if_below
from tango_core.compressors.released import edited_digest
from tango_core.errors import InputError
from tango_core.extensions import short_name
from tango_core.latency import NO_TIMER, StepTimer
from tango_core.ops.precision import full_precision
from tango_core.outside_code import is_outside, note_sources, source_digest
from tango_core.types import CompressedVideo, Positions, VisualFeatures
from tango_core.wrong_options import raise_if_no_share

__all__ = [
    "Combination",
    "Compressor",
    "LayerContext",
    "LayerPruner",
    "Pruned",
    "keep",
    "num_kept",
    "read_checked",
    "select",
]


@dataclass(frozen=True)
class Compressor(ABC):
    """A pure function from the features of one clip to the tokens that are kept of it.

    Subclasses are frozen dataclasses whose fields are the method's options, and implement `_plan`:
    what is kept, and what every kept token is made of. Everything that holds for all methods
    (validation, the identity at retention 1, making the tokens) is done here, once.

    A method whose result is no weighted sum of the clip's tokens implements `_compress` instead. It
    has no plan, and caches store its tokens.

    Attributes:
        retention: Share of the visual tokens to keep, in (0, 1].
    """

    # Whether there is a plan. If so, a stored plan gives the bytes of `compress`, which applies it.
    # Follows from what a class implements; not to be set by hand.
    has_plan: ClassVar[bool] = True
    positions: ClassVar[Positions] = "renumbered"
    # Raised when tokens change by more than rounding; see README.md.
    version: ClassVar[int] = 1
    # Name in the identity; "" for the class's in lower case.
    entry_name: ClassVar[str] = ""
    # Options that came after caches existed, with the values under which nothing changed.
    added_options: ClassVar[Mapping[str, Any]] = {}

    retention: float

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Note whether a class plans, or makes tokens itself, and what it was read from."""
        super().__init_subclass__(**arguments)
        if is_outside(cls):
            note_sources(cls)  # now, while the files still are what is imported
        if vars(cls).keys() & {"_plan", "_plan_in_steps"}:
            cls.has_plan = True
        elif vars(cls).keys() & {"_compress", "_compress_in_steps"}:
            cls.has_plan = False
            if getattr(cls._plan, "__isabstractmethod__", False):
                cls._plan = _no_plan  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        """Check the options; subclasses extend it."""
        raise_if_no_share("retention", self.retention)

    @classmethod
    def published_options(
        cls, options: Mapping[str, Any], model: str | None, num_layers: int
    ) -> dict[str, Any]:
        """Fill in options whose published values depend on the model.

        Args:
            options: Checked options.
            model: Name of the model, as in `MODELS`; `None` if it is not known.
            num_layers: Layers of its language model.

        Raises:
            ValueError: If the model has too few layers for them.
        """
        return dict(options)

    @property
    def needs(self) -> frozenset[str]:
        """Names of the optional fields of `VisualFeatures` that this method reads."""
        return frozenset()

    @property
    def checks_in_plan(self) -> bool:
        """Whether `_plan` refuses values that are not finite, by what it reads anyway.

        See `read_checked`: the host waits for the device once less.
        """
        return False

    @property
    def averages(self) -> bool:
        """Whether the weights of every kept token add up to 1 in plans of this method."""
        return True

    @property
    def outer_retention(self) -> float:
        """Share of the tokens this step keeps; above `retention` where an in-LLM step follows."""
        return self.retention

    def identity(self) -> dict[str, Any]:
        """What decides the tokens this compressor makes, as JSON-able values, for the cache.

        The name is `entry_name` or the class's in lower case, the entry in `METHODS`. Settings that
        give the same tokens give the same identity where that is known: at retention 1 every method
        is `full`. The version is named from 2 on, as caches are older than versions.

        An edited method never meets the tokens of its earlier code: a class from outside this
        package also has the digest of its source files, and so has every class whose sources in
        this package are not the released ones (`released.py`).

        Raises:
            ValueError: If a class from outside was not read from a file.
        """
        if self.outer_retention >= 1:
            return {"name": "full"}
        cls = type(self)
        name = cls.entry_name or short_name(cls.__name__.lower())
        identity = {"name": name, **self._identity_options()}
        if cls.version != 1:
            identity["version"] = cls.version
        if is_outside(cls):
            identity["source_digest"] = source_digest(cls)
        if edited := edited_digest(cls):
            identity["edited_digest"] = edited
        return identity

    def _identity_options(self) -> dict[str, Any]:
        """All options by name; subclasses resolve what has several spellings.

        Options that came later are left out where they change nothing, so that caches keep their
        names.
        """
        added = type(self).added_options
        options = {option.name: getattr(self, option.name) for option in fields(self)}
        return {
            name: value
            for name, value in options.items()
            if name not in added or value != added[name]
        }

    def most_rounding(self, num_frames: int, grid: tuple[int, int]) -> float:
        """Tokens by which a clip's count may differ from `outer_retention` of it by rounding.

        Published budgets are rounded once for salient and once for context tokens of every frame.
        """
        return 2 * num_frames

    @torch.no_grad()
    @full_precision()
    def compress(self, features: VisualFeatures, clock: StepTimer = NO_TIMER) -> CompressedVideo:
        """Keep the tokens this method chooses; the input is never written to.

        No gradient is recorded, also where the features require one.

        Args:
            features: (T, L, D) tokens and the signals named by `needs`.
            clock: Is told which step is running (`segment`, `select`, `merge`) by methods that have
                such steps; see `LatencyProfile`.

        Returns:
            K tokens with ascending positions, in the dtype and on the device of the input.

        Raises:
            ValueError: If a needed signal is missing, or tokens or signals hold NaN or infinity.
        """
        self._check(features)
        if self.has_plan or self.outer_retention >= 1:
            plan = self._checked_plan(features, clock)
            with nullcontext() if plan.is_selection else clock.stage("merge"):
                video = plan.apply(features.tokens, features.companions, anchored=features.anchored)
        else:
            video = self._compress_in_steps(features, clock)
            if features.companions is not None and video.companions is None:
                # Nobody knows what such a method made its tokens of.
                own = features.companions.flatten(0, 1).index_select(0, video.indices)
                video = replace(video, companions=own)
        return video if features.source is None else replace(video, source=features.source)

    @torch.no_grad()
    @full_precision()
    def plan(self, features: VisualFeatures, clock: StepTimer = NO_TIMER) -> Combination:
        """What `compress` keeps, and of what it makes every kept token; no token is made.

        Applied to the same tokens it gives the bytes of `compress`, also after it was stored.

        Args:
            features: (T, L, D) tokens and the signals named by `needs`.
            clock: As for `compress`.

        Returns:
            The map, with what a viewer draws beside it.

        Raises:
            ValueError: As `compress`, and for a method without plans (`has_plan`).
        """
        if not self.has_plan and self.outer_retention < 1:
            raise ValueError(
                f"{type(self).__name__} makes its tokens itself and has no plan; "
                "store its tokens, or implement _plan"
            )
        self._check(features)
        plan = self._checked_plan(features, clock)
        return replace(plan, drawing=self._drawing(features, plan.drawing), means=None)

    def _checked_plan(self, features: VisualFeatures, clock: StepTimer) -> Combination:
        """The plan for features that can be compressed."""
        if self.outer_retention >= 1:
            return keep(features, torch.arange(features.tokens.shape[:2].numel()))
        return self._plan_in_steps(features, clock)

    def _drawing(self, features: VisualFeatures, drawing: Drawing | None) -> Drawing:
        """A method's own drawing, and the score it ranks by."""
        drawing = drawing or Drawing()
        ranked_by = [name for name in ("saliency", "attention") if name in self.needs]
        return drawing.with_saliency(getattr(features, ranked_by[0])) if ranked_by else drawing

    def _check(self, features: VisualFeatures) -> None:
        """Raise `ValueError` for features that cannot be compressed."""
        raise_if_missing(features, self.needs)
        if self.outer_retention >= 1 or not self.checks_in_plan:
            raise_if_not_finite(features, self.needs)

    @abstractmethod
    def _plan(self, features: VisualFeatures) -> Combination:
        """The method itself; retention is below 1 and the input is finite."""

    def _plan_in_steps(self, features: VisualFeatures, clock: StepTimer) -> Combination:
        """As `_plan`; methods with steps of their own override it and tell the clock."""
        return self._plan(features)

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        """The method itself, where there is no plan; retention is below 1, the input is finite."""
        return self._plan_in_steps(features, NO_TIMER).apply(features.tokens)

    def _compress_in_steps(self, features: VisualFeatures, clock: StepTimer) -> CompressedVideo:
        """As `_compress`; methods with steps of their own override it and tell the clock."""
        return self._compress(features)


def _no_plan(self: Compressor, features: VisualFeatures) -> Combination:
    """Stands in for `_plan` in classes that implement `_compress` alone."""
    raise NotImplementedError(f"{type(self).__name__} implements _compress and has no plan")


def keep(features: VisualFeatures, indices: Tensor) -> Combination:
    """The plan that keeps the tokens at (K,) ascending flat `indices`, unchanged."""
    return Combination(
        indices=indices.to(features.tokens.device),
        grid=(len(features.tokens), *features.grid),
        timestamps=features.timestamps,
    )


def select(features: VisualFeatures, indices: Tensor) -> CompressedVideo:
    """Keep the tokens at (K,) ascending flat `indices`, unchanged; for methods without a plan."""
    return keep(features, indices).apply(features.tokens)


@dataclass(frozen=True)
class LayerPruner(ABC):
    """Drops (or merges) visual tokens between two layers while the prompt is prefilled.

    Attributes:
        renumbers: Whether every layer counts positions contiguously among the tokens it holds;
            otherwise tokens keep the positions they had. Three-dimensional positions (Qwen2.5-VL)
            are kept in any case.
        retention: Share of the visual tokens kept; averaged over all layers for stand-alone
            methods, from `layer` on for the `inner` step of a hybrid.
        layer: 0-based index of the (first) layer whose input is pruned.
    """

    renumbers: ClassVar[bool] = False

    retention: float
    layer: int

    def __post_init__(self) -> None:
        """Check the options; subclasses extend it."""
        raise_if_no_share("retention", self.retention)
        raise_if_below(self, 0, "layer")

    def layers(self, num_layers: int) -> tuple[int, ...]:
        """Indices of the layers before which `prune` is called.

        Raises:
            ValueError: If `layer` does not exist in a language model of `num_layers` layers,
                or the average cannot be met.
        """
        if not self.layer < num_layers:
            raise InputError(
                f"layer must be below the language model's {num_layers} layers, got {self.layer}"
            )
        return (self.layer,)

    def layer_shares(self, num_layers: int) -> tuple[float, ...]:
        """Share of the prompt's visual tokens that enters each layer, by the settings, in (0, 1].

        What a prompt really keeps differs by rounding, and more where a method's docstring says so.

        Raises:
            ValueError: As `layers`.
        """
        (layer,) = self.layers(num_layers)
        return (1.0,) * layer + (self.retention,) * (num_layers - layer)

    @abstractmethod
    def prune(self, context: LayerContext) -> Pruned:
        """Choose what stays; `context.hidden` is never written to."""


def num_kept(total: int, retention: float) -> int:
    """`round(total * retention)` (half to even), but at least 1 and at most `total`."""
    return min(total, max(1, round(total * retention)))
