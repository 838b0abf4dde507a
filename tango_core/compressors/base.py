"""Base classes of methods: `Compressor` before the language model, `LayerPruner` inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tango_core.code_identity import edited_digest, is_outside, note_sources, source_digest
from tango_core.combination import Combination, Drawing
from tango_core.compressors.options import raise_if_below, raise_if_no_share
from tango_core.errors import InputError
from tango_core.extensions import short_name
from tango_core.latency import NO_TIMER, StepTimer
from tango_core.ops.finite import raise_if_missing, raise_if_not_finite, read_checked
from tango_core.ops.precision import full_precision
from tango_core.ops.saliency import positions_of
from tango_core.types import CompressedVideo, Positions, VisualFeatures

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
        package also has the digest of its source files, and where sources in this package are not
        the released ones, every class has a digest of them (`tango_core.code_identity`).

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
        if edited := edited_digest():
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


def num_kept(total: int, retention: float) -> int:
    """`round(total * retention)` (half to even), but at least 1 and at most `total`."""
    return min(total, max(1, round(total * retention)))


@dataclass(frozen=True)
class Pruned:
    """What a `LayerPruner` leaves of the sequence.

    Attributes:
        keep: (S',) int64, ascending; positions in the current sequence that stay. Text tokens
            always stay.
        hidden: (S', D) their hidden states, possibly merged.
    """

    keep: Tensor
    hidden: Tensor


@dataclass
class LayerContext:
    """What a `LayerPruner` may read at the input of layer `layer`, for one sequence.

    Attributes:
        layer: 0-based index of the layer about to run.
        num_layers: Layers of the language model.
        hidden: (S, D) input of this layer.
        visual: (n,) int64, ascending positions of the visual tokens (newline tokens included) in
            the current sequence. A clip may have text of its own between them (time stamps).
        after: Position of the first text token after the clip; there is at least one.
        num_visual: Visual tokens the prompt had before any in-LLM pruning.
        previous_visual: (n,) int64, for every visual token still here its index among the original
            `num_visual`.
        grid: (T, H, W) of the clip before any compression.
        visual_indices: (num_visual,) int64 flat grid positions of the prompt's visual tokens; -1
            for newline tokens.
        attention: `attention(rows)` gives the (heads, len(rows), S) float32 softmax probabilities
            of layer `layer - 1` for the queries at positions `rows`, causally masked, recomputed
            next to the fused kernel.
        keys: `keys()` gives the (S, kv_heads * head_dim) keys of layer `layer - 1` after the rotary
            embedding.
        norm: The language model's final normalisation.
        scratch: Values that a pruner keeps from one layer to the next, for this prompt only.
        attention_ahead: As `attention`, but of `layer` itself if it ran on all of `hidden`.
        is_one_run: Whether the visual tokens stand side by side, right before `after`; then they
            can be looked at without a copy.
    """

    layer: int
    num_layers: int
    hidden: Tensor
    visual: Tensor
    after: int
    num_visual: int
    previous_visual: Tensor
    grid: tuple[int, int, int]
    visual_indices: Tensor
    attention: Callable[[Tensor], Tensor]
    keys: Callable[[], Tensor]
    norm: Callable[[Tensor], Tensor]
    scratch: dict[str, Any] = field(default_factory=dict)
    attention_ahead: Callable[[Tensor], Tensor] | None = None
    is_one_run: bool = False

    @property
    def num_left(self) -> int:
        """Visual tokens still in the sequence."""
        return len(self.visual)

    @property
    def states(self) -> Tensor:
        """(n, D) states of the visual tokens still in the sequence; not to be written to."""
        if self.is_one_run:
            return self.hidden[self._start : self.after]
        return self.hidden.index_select(0, self.visual)

    @property
    def _start(self) -> int:
        """Position of the first visual token of a run."""
        return self.after - self.num_left

    def last_token_scores(self, *, ahead: bool = False) -> Tensor:
        """Attention of the prompt's last token to every visual token, averaged over heads.

        Args:
            ahead: Of layer `layer` instead of the one before it.

        Returns:
            (n,) float32.

        Raises:
            ValueError: If the attention of that layer is not available.
        """
        attention = self.attention_ahead if ahead else self.attention
        if attention is None:
            raise ValueError(f"the attention of layer {self.layer} is not available to its pruner")
        length = len(self.hidden)
        last = torch.arange(length - 1, length, device=self.hidden.device)
        return attention(last)[:, 0, self.visual].mean(dim=0)

    def positions_with(self, kept: Tensor) -> Tensor:
        """Positions of all text tokens and of some visual ones, ascending.

        Args:
            kept: (k,) int64 ascending indices into the visual tokens still in the sequence.
        """
        length = len(self.hidden)
        if self.is_one_run:
            every = torch.arange(length, device=self.hidden.device)
            return torch.cat([every[: self._start], kept + self._start, every[self.after :]])
        stays = torch.ones(length, dtype=torch.bool, device=self.hidden.device)
        stays.index_fill_(0, self.visual, False)
        stays.index_fill_(0, self.visual[kept], True)
        return positions_of(stays, length - self.num_left + len(kept))

    def places_of(self, kept: Tensor) -> Tensor:
        """Where some visual tokens are in the sequence that is left when the others have gone.

        Args:
            kept: (k,) int64 ascending indices into the visual tokens still in the sequence.

        Returns:
            (k,) int64 positions in what `positions_with` gives.
        """
        return self.visual[kept] - kept + torch.arange(len(kept), device=kept.device)

    def select(self, kept: Tensor) -> Pruned:
        """Keep the visual tokens at (k,) ascending `kept` and all text, unchanged."""
        keep = self.positions_with(kept)
        if len(keep) == len(self.hidden):
            return Pruned(keep, self.hidden.clone())
        return Pruned(keep, self.hidden.index_select(0, keep))

    def select_merged(self, kept: Tensor, states: Tensor) -> Pruned:
        """Keep the visual tokens at (k,) ascending `kept` with new (k, D) states, and all text."""
        keep = self.positions_with(kept)
        if self.is_one_run:
            before, after = self.hidden[: self._start], self.hidden[self.after :]
            return Pruned(keep, torch.cat([before, states.to(self.hidden.dtype), after]))
        hidden = self.hidden.index_select(0, keep)
        hidden.index_copy_(0, self.places_of(kept), states.to(hidden.dtype))
        return Pruned(keep, hidden)


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
