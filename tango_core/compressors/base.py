"""Base classes of methods: `Compressor` before the language model, `LayerPruner` inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from tango_core.code_identity import edited_digest, is_outside, note_sources, source_digest
from tango_core.combination import Combination as Combination
from tango_core.combination import Drawing
from tango_core.compressors.options import Index, Share, check_ranges
from tango_core.errors import InputError
from tango_core.extensions import short_name
from tango_core.latency import NO_TIMER, LatencyProfile
from tango_core.ops.finite import raise_if_missing, raise_if_not_finite
from tango_core.ops.finite import read_checked as read_checked
from tango_core.ops.precision import full_precision
from tango_core.ops.saliency import positions_of
from tango_core.types import CompressedVideo, Positions, Question, VisualFeatures

QuestionField = Literal["question", "aligned_question", "saliency"]


@dataclass(frozen=True)
class Compressor(ABC):
    """A pure function from the features of one clip to its kept tokens.

    Subclasses are frozen dataclasses whose fields are the method's options, and implement `_plan`,
    which returns the kept positions and the weighted sum that forms every kept token. The common
    parts (validation, the identity at retention 1, computing the tokens) are implemented here.

    A method whose result is not a weighted sum of the clip's tokens implements `_compress` instead.
    It has no plan, so caches store its tokens.

    Attributes:
        retention: Share of the visual tokens to keep, in (0, 1].
    """

    # Whether the class has plans; if so, applying a stored plan gives the same bytes as `compress`.
    # Derived from the implemented methods; do not set it.
    has_plan: ClassVar[bool] = True
    positions: ClassVar[Positions] = "renumbered"
    # Increase when tokens change by more than rounding; see README.md.
    version: ClassVar[int] = 1
    # Name in the identity; "" for the class name in lower case.
    entry_name: ClassVar[str] = ""
    # Options added after the first release of the class, with the values that leave tokens
    # unchanged.
    added_options: ClassVar[Mapping[str, Any]] = {}

    retention: Share

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Record whether the class has plans, and its source files."""
        super().__init_subclass__(**arguments)
        if is_outside(cls):
            note_sources(cls)  # now, while the files are still the imported ones
        if "_plan" in vars(cls):
            cls.has_plan = True
        elif "_compress" in vars(cls):
            cls.has_plan = False
            if getattr(cls._plan, "__isabstractmethod__", False):
                cls._plan = _no_plan  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        """Check the options; subclasses extend it."""
        check_ranges(self)

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
    def question_field(self) -> QuestionField | None:
        """The field of `VisualFeatures` that tells this method about the question.

        `None` for methods whose result does not depend on the question. `with_question` fills it.
        """
        return None

    def question_text(self, question: Question) -> str:
        """The text that this method compares with the clip.

        Questions about a clip with equal texts share a plan.
        """
        return question.text

    def with_question(
        self, features: VisualFeatures, text: str, embed: Callable[[str], Tensor]
    ) -> VisualFeatures:
        """Features of a clip with a question about it.

        Args:
            features: Features of the clip.
            text: From `question_text`.
            embed: Computes the (M, D) input embeddings of a text's tokens, on the CPU.
        """
        return replace(features, question=embed(text).to(features.tokens.device))

    @property
    def checks_in_plan(self) -> bool:
        """Whether `_plan` itself rejects NaN and infinity, using values that it reads anyway.

        See `read_checked`; this saves one device synchronisation.
        """
        return False

    @property
    def averages(self) -> bool:
        """Whether the weights of every kept token add up to 1 in plans of this method."""
        return True

    @property
    def outer_retention(self) -> float:
        """Share of tokens kept by this step; above `retention` if an in-LLM step follows."""
        return self.retention

    def identity(self) -> dict[str, Any]:
        """Everything that determines this compressor's tokens, as JSON-able values, for cache keys.

        The name is `entry_name` or the class name in lower case, the entry in `METHODS`. Settings
        known to give the same tokens have the same identity: at retention 1 every method is `full`.
        Version 1 is omitted, because caches are older than versions.

        Editing a method changes its identity: a class from outside this package also includes the
        digest of its source files, and if sources in this package differ from the released ones,
        every class includes a digest of them (`tango_core.code_identity`).

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
        """All options by name; subclasses normalise equivalent values.

        Later options are omitted at values that leave tokens unchanged, so that existing cache keys
        stay valid.
        """
        added = type(self).added_options
        options = {option.name: getattr(self, option.name) for option in fields(self)}
        return {
            name: value
            for name, value in options.items()
            if name not in added or value != added[name]
        }

    def most_rounding(self, num_frames: int, grid: tuple[int, int]) -> float:
        """Maximum difference by rounding between a clip's token count and `outer_retention` of it.

        Default: published budgets are rounded for the salient and for the context tokens of every
        frame.
        """
        return 2 * num_frames

    @torch.no_grad()
    @full_precision()
    def compress(
        self, features: VisualFeatures, clock: LatencyProfile = NO_TIMER
    ) -> CompressedVideo:
        """Keep the tokens this method chooses; the input is never written to.

        No gradient is recorded, also where the features require one.

        Args:
            features: (T, L, D) tokens and the signals named by `needs`.
            clock: Receives the name of the running step (`segment`, `select`, `merge`) from methods
                that have such steps; see `LatencyProfile`.

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
            video = self._compress(features)
            if features.companions is not None and video.companions is None:
                # The sources of its tokens are unknown.
                own = features.companions.flatten(0, 1).index_select(0, video.indices)
                video = replace(video, companions=own)
        return _of_clip(video, features)

    @torch.no_grad()
    @full_precision()
    def plan(self, features: VisualFeatures, clock: LatencyProfile = NO_TIMER) -> Combination:
        """Compute the kept positions and their weighted sums without computing tokens.

        Applied to the same tokens, the plan gives the bytes of `compress`, also after storage.

        Args:
            features: (T, L, D) tokens and the signals named by `needs`.
            clock: As for `compress`.

        Returns:
            The sparse map, with the data that the viewer draws.

        Raises:
            ValueError: As `compress`, and for a method without plans (`has_plan`).
        """
        if not self.has_plan and self.outer_retention < 1:
            raise ValueError(
                f"{type(self).__name__} implements _compress and has no plan; "
                "store its tokens, or implement _plan"
            )
        self._check(features)
        plan = self._checked_plan(features, clock)
        return replace(plan, drawing=self._drawing(features, plan.drawing))

    @torch.no_grad()
    @full_precision()
    def compress_for(self, asked: Sequence[VisualFeatures]) -> list[CompressedVideo]:
        """Compress one clip for several questions; work that they share is done once.

        Args:
            asked: As for `compress`: the features of one clip, each with another question.

        Returns:
            One result per question, equal to that of `compress`.

        Raises:
            ValueError: As `compress`.
        """
        if len(asked) == 1 or not self.has_plan or self.outer_retention >= 1:
            return [self.compress(one) for one in asked]
        for one in asked:
            self._check(one)
        return [
            _of_clip(plan.apply(one.tokens, one.companions, anchored=one.anchored), one)
            for plan, one in zip(self._plans(asked), asked, strict=True)
        ]

    def _plans(self, asked: Sequence[VisualFeatures]) -> list[Combination]:
        """Plans for several questions about one clip; all but the question is equal."""
        return [self._plan(one) for one in asked]

    def _checked_plan(self, features: VisualFeatures, clock: LatencyProfile) -> Combination:
        """The plan for features that can be compressed."""
        if self.outer_retention >= 1:
            return keep(features, torch.arange(features.tokens.shape[:2].numel()))
        return self._plan_in_steps(features, clock)

    def _drawing(self, features: VisualFeatures, drawing: Drawing | None) -> Drawing:
        """The method's drawing, completed with the score that it ranks by."""
        drawing = drawing or Drawing()
        ranked_by = [name for name in ("saliency", "attention") if name in self.needs]
        return drawing.with_saliency(getattr(features, ranked_by[0])) if ranked_by else drawing

    def _check(self, features: VisualFeatures) -> None:
        """Raise `ValueError` for features that cannot be compressed."""
        question = self.question_field
        raise_if_missing(features, self.needs | ({question} if question else frozenset()))
        if self.outer_retention >= 1 or not self.checks_in_plan:
            raise_if_not_finite(features, self.needs)

    @abstractmethod
    def _plan(self, features: VisualFeatures) -> Combination:
        """Compute the plan; retention is below 1 and the input is finite."""

    def _plan_in_steps(self, features: VisualFeatures, clock: LatencyProfile) -> Combination:
        """Like `_plan`; methods with several steps override it and report them to the clock."""
        return self._plan(features)

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        """Compress without a plan; retention is below 1 and the input is finite."""
        return self._plan(features).apply(features.tokens)


def _of_clip(video: CompressedVideo, features: VisualFeatures) -> CompressedVideo:
    """The kept tokens with the clip's source, and at positions among all frames of the clip."""
    if features.frame_map is not None and features.source_timestamps is not None:
        length = features.tokens.shape[1]
        frames = features.frame_map[:, 0].to(video.indices.device)[video.indices // length]
        video = replace(
            video,
            indices=frames * length + video.indices % length,
            grid=(len(features.source_timestamps), *features.grid),
            timestamps=features.source_timestamps,
        )
    return video if features.source is None else replace(video, source=features.source)


def _no_plan(self: Compressor, features: VisualFeatures) -> Combination:
    """Replaces `_plan` in classes that implement only `_compress`."""
    raise NotImplementedError(f"{type(self).__name__} implements _compress and has no plan")


@dataclass(frozen=True)
class ExactBudget(Compressor):
    """A compressor that keeps round(retention * T * L) tokens.

    Attributes:
        budget: `"exact"`, the only value; the option exists so that a recipe can set it for all
            methods.
    """

    added_options: ClassVar[Mapping[str, Any]] = {"budget": "exact"}

    budget: Literal["exact"] = field(default="exact", kw_only=True)


@dataclass(frozen=True)
class QuestionReading(Compressor):
    """A compressor that reads the embeddings of the question.

    Attributes:
        question: Which question is read. `"own"`: the one that is asked. `"other_clip"`: one that
            another clip of the job is asked (`Question.other`), a control that has the method's
            arithmetic and knows nothing about the question.
    """

    added_options: ClassVar[Mapping[str, Any]] = {"question": "own"}

    question: Literal["own", "other_clip"] = field(default="own", kw_only=True)

    @property
    def question_field(self) -> QuestionField:
        """See `Compressor`."""
        return "question"

    def question_text(self, question: Question) -> str:
        """See `Compressor`."""
        return self.question_read(question).text

    def question_read(self, question: Question) -> Question:
        """The question that is read when `question` is asked.

        Raises:
            InputError: If there is no question of another clip.
        """
        if self.question == "own":
            return question
        if question.other is None:
            raise InputError(
                f"question=other_clip: no other clip asks what {question.id!r} does not; use a job "
                "with several clips that are asked different questions, or question=own"
            )
        return question.other


def keep(features: VisualFeatures, indices: Tensor) -> Combination:
    """The plan that keeps the tokens at (K,) ascending flat `indices`, unchanged."""
    return Combination(
        indices=indices.to(features.tokens.device),
        grid=(len(features.tokens), *features.grid),
        timestamps=features.timestamps,
    )


ScoredRow = Literal["main", "deepstack"]


def scored_row(features: VisualFeatures, row: ScoredRow) -> Tensor:
    """(T, L, C) values that a method ranks tokens by.

    Args:
        features: The clip's features.
        row: `"main"` for the tokens; `"deepstack"` for the tokens followed by their companions, the
            row that vLLM passes to its pruning functions for Qwen3-VL. Equal for models without
            companions.
    """
    if row == "main" or features.companions is None:
        return features.tokens
    raise_if_not_finite(features, frozenset({"companions"}))
    return torch.cat([features.tokens, features.companions.flatten(2)], dim=-1)


def select(features: VisualFeatures, indices: Tensor) -> CompressedVideo:
    """Keep the tokens at (K,) ascending flat `indices`, unchanged; for methods without a plan."""
    return keep(features, indices).apply(features.tokens)


def num_kept(total: int, retention: float) -> int:
    """`round(total * retention)` (half to even), but at least 1 and at most `total`."""
    return min(total, max(1, round(total * retention)))


@dataclass(frozen=True)
class Pruned:
    """Result of a `LayerPruner`: the remaining sequence.

    Attributes:
        keep: (S',) int64, ascending positions in the current sequence that stay, always including
            all text tokens.
        hidden: (S', D) their hidden states, possibly merged.
    """

    keep: Tensor
    hidden: Tensor


@dataclass
class LayerContext:
    """Input of a `LayerPruner` before layer `layer`, for one sequence.

    Attributes:
        layer: 0-based index of the layer about to run.
        num_layers: Layers of the language model.
        hidden: (S, D) input of this layer.
        visual: (n,) int64, ascending positions of the visual tokens (newline tokens included) in
            the current sequence. Text that belongs to the clip (time stamps) may be between them.
        after: Position of the first text token after the clip; there is at least one.
        num_visual: Number of visual tokens before any in-LLM pruning.
        previous_visual: (n,) int64 indices of the remaining visual tokens among the original
            `num_visual`.
        grid: (T, H, W) of the clip before any compression.
        visual_indices: (num_visual,) int64 flat grid positions of the prompt's visual tokens; -1
            for newline tokens.
        attention: `attention(rows)` returns the (heads, len(rows), S) float32 softmax probabilities
            of layer `layer - 1` for the queries at positions `rows`, causally masked; they are
            recomputed, because the fused kernel does not return them.
        keys: `keys()` returns the (S, kv_heads * head_dim) keys of layer `layer - 1` after the
            rotary embedding.
        norm: The language model's final normalisation.
        scratch: Values that a pruner keeps from one layer to the next, for this prompt only.
        attention_ahead: Like `attention`, but for `layer` itself, computed on all of `hidden`.
        is_one_run: Whether the visual tokens are contiguous and end right before `after`; then
            `states` is a view.
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
        """Number of remaining visual tokens."""
        return len(self.visual)

    @property
    def states(self) -> Tensor:
        """(n, D) states of the remaining visual tokens; do not write to them."""
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
            ahead: Use the attention of layer `layer` instead of the previous layer.

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
        """Ascending positions of all text tokens and of the visual tokens in `kept`.

        Args:
            kept: (k,) int64 ascending indices into the remaining visual tokens.
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
        """Positions of the visual tokens in `kept` after all other visual tokens were dropped.

        Args:
            kept: (k,) int64 ascending indices into the remaining visual tokens.

        Returns:
            (k,) int64 positions in the result of `positions_with`.
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
        renumbers: Whether the remaining tokens are renumbered contiguously; otherwise they keep
            their positions. Three-dimensional positions (Qwen2.5-VL) are always kept.
        retention: Share of the visual tokens kept; averaged over all layers for stand-alone
            methods, from `layer` on for the `inner` step of a hybrid.
        layer: 0-based index of the (first) layer whose input is pruned.
    """

    renumbers: ClassVar[bool] = False

    retention: Share
    layer: Index

    def __post_init__(self) -> None:
        """Check the options; subclasses extend it."""
        check_ranges(self)

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

    def attention_layers(self, num_layers: int) -> tuple[int, ...]:
        """Layers whose attention weights or keys `prune` may read: those before its own.

        Raises:
            ValueError: As `layers`.
        """
        return tuple(layer - 1 for layer in self.layers(num_layers) if layer)

    def layer_shares(self, num_layers: int) -> tuple[float, ...]:
        """Nominal share of the prompt's visual tokens that enters each layer, in (0, 1].

        Actual shares differ by rounding, and by more only if the method's docstring says so.

        Raises:
            ValueError: As `layers`.
        """
        (layer,) = self.layers(num_layers)
        return (1.0,) * layer + (self.retention,) * (num_layers - layer)

    @abstractmethod
    def prune(self, context: LayerContext) -> Pruned:
        """Choose the tokens that stay, without writing to `context.hidden`."""
