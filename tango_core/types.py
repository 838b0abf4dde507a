"""Data types of the project: questions, clips, features, compressed clips, answers.

Letters in docstrings: T temporal positions (frames; for Qwen2.5-VL pairs of frames), H and W the
token grid, L = H * W tokens per temporal position, D the width of the language model, K tokens
kept.

Every type is frozen and checks its invariants on construction, so that a wrong shape is reported
where it arises and not in a later stage. Importing this module does not import torch, so
that decode workers stay small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from tango_core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Positions = Literal["renumbered", "original"]
Status = Literal[
    "ok", "decode_failed", "decode_damaged", "encode_failed", "answer_failed", "unparsed"
]
Match = Literal["exact", "contains"]

_NO_GROUPS: Mapping[str, str] = MappingProxyType({})


class NotFiniteError(ValueError):
    """A half of a model computed NaN or infinity."""


@dataclass(frozen=True)
class ClipSource:
    """Length and height of a clip before sampling and resizing; some prompts state them.

    Attributes:
        duration_s: Length in seconds: the clip's frames divided by the file's average rate.
        frame_height: Height in pixels of the file's frames, after rotation to upright.
    """

    duration_s: float
    frame_height: int


@dataclass(frozen=True, eq=False)
class VideoFrames:
    """Decoded frames of one clip.

    Attributes:
        pixels: (F, h, w, 3) uint8 RGB.
        timestamps: (F,) float64 seconds from the start of the file, non-decreasing; repeated frames
            repeat their time.
        decoder: The library that produced the frames, with its version, e.g. `"pyav 18.1.0"`.
        warnings: Problems that do not stop decoding, e.g. that the file ends before its header
            says.
        source: Length and height of the clip in its file; `None` if unknown.
        damage: Why the frames may differ from those of the undamaged file; empty for an intact
            clip.
    """

    pixels: np.ndarray
    timestamps: np.ndarray
    decoder: str = ""
    warnings: tuple[str, ...] = ()
    source: ClipSource | None = None
    damage: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check shapes and types, and that every frame has a time."""
        shape, times = self.pixels.shape, self.timestamps
        if len(shape) != 4 or shape[-1] != 3 or not shape[0] or self.pixels.dtype != np.uint8:
            raise ValueError(
                f"pixels must be (F, h, w, 3) uint8 of at least one frame, got {shape}"
            )
        wrong = times.shape != shape[:1] or times.dtype != np.float64
        if wrong or not np.isfinite(times).all():
            raise ValueError(f"timestamps must be {shape[:1]} finite float64, got {times}")


@dataclass(frozen=True, eq=False)
class VisualFeatures:
    """All visual tokens of a clip, and the signals that methods use to rank them.

    Attributes:
        tokens: (T, L, D) projected and pooled visual tokens, in the model's dtype.
        grid: (H, W) with H * W = L.
        timestamps: (T,) float64 seconds.
        saliency: (T, L) float32, the "p-attn" score (METHODS: attention of the pooling head's
            probe); `None` if it was not requested.
        attention: (T, L) float32, the "attn" score: mean self-attention a token receives in the
            last block run.
        keys: (T, L, Dk) keys of that block, averaged over heads and pooled.
        frame_embeddings: (T, Dv) one vector per frame (SigLIP: the pooling head's output).
        sinks: Flat grid positions that attract attention in every video, a property of the
            encoder; in any order.
        source: Length and height of the clip in its file; `None` if unknown.
        companions: (T, L, E, D) rows added to every token's state after the first E layers of the
            language model (DeepStack of Qwen3-VL), in the dtype of the tokens; `None` for other
            models. Methods rank and merge by `tokens` alone.
        anchored: Whether a merged token takes the companions of the token at its position; else
            they are merged with the weights of the tokens.
        tower_tokens: (T, L, C) output of the vision tower before the projector, pooled like the
            tokens.
        unpooled_tokens: (T, P, D) projected tokens on the tower's grid, before pooling.
        shallow_attention: (T, P) float32 attention that positions of the tower's grid receive in
            its sixth block.
        deep_attention: (T, P) float32, the same in the second-last block that is run.
        merged_attention: (T, L) float32 attention that tokens receive in the last block behind
            which frames were merged.
        frame_map: (T, 2) int64 if the encoder merged frames, else `None`: the frame of the clip
            that each of the T frames was first, ascending, and the number of its group.
        source_timestamps: Seconds of all frames of the clip, if the encoder merged frames.
        question: (M, D) input embeddings of the question's text tokens in the language model, for
            methods that depend on the question; `None` without a question.
        text_aligned: (T, L, C) image features in the space of a text encoder.
        aligned_question: (M, C) the question's pieces in that space.
        encoder_flops: Floating-point operations of encoding the clip; `None` if unknown, as in
            stored features.
    """

    tokens: Tensor
    grid: tuple[int, int]
    timestamps: Tensor
    saliency: Tensor | None = None
    attention: Tensor | None = None
    keys: Tensor | None = None
    frame_embeddings: Tensor | None = None
    sinks: tuple[int, ...] = ()
    source: ClipSource | None = None
    companions: Tensor | None = None
    anchored: bool = False
    tower_tokens: Tensor | None = None
    unpooled_tokens: Tensor | None = None
    shallow_attention: Tensor | None = None
    deep_attention: Tensor | None = None
    merged_attention: Tensor | None = None
    frame_map: Tensor | None = None
    source_timestamps: Tensor | None = None
    question: Tensor | None = None
    text_aligned: Tensor | None = None
    aligned_question: Tensor | None = None
    encoder_flops: float | None = None

    def __post_init__(self) -> None:
        """Check that all fields describe the same T x H x W tokens."""
        tokens_per_frame, shape = self.grid[0] * self.grid[1], tuple(self.tokens.shape)
        if min(self.grid) < 1 or len(shape) != 3 or not shape[0] or shape[1] != tokens_per_frame:
            raise ValueError(f"tokens must be (T, H * W, D) on grid {self.grid}, got {shape}")
        num_frames, _, width = shape
        for name, known, free in (
            ("timestamps", (num_frames,), ()),
            ("companions", (num_frames, tokens_per_frame), ("E", "D")),
            ("saliency", (num_frames, tokens_per_frame), ()),
            ("attention", (num_frames, tokens_per_frame), ()),
            ("keys", (num_frames, tokens_per_frame), ("Dk",)),
            ("frame_embeddings", (num_frames,), ("Dv",)),
            ("tower_tokens", (num_frames, tokens_per_frame), ("C",)),
            ("unpooled_tokens", (num_frames,), ("P", "D")),
            ("shallow_attention", (num_frames,), ("P",)),
            ("deep_attention", (num_frames,), ("P",)),
            ("merged_attention", (num_frames, tokens_per_frame), ()),
            ("frame_map", (num_frames, 2), ()),
            ("question", (), ("M", "D")),
            ("text_aligned", (num_frames, tokens_per_frame), ("C",)),
            ("aligned_question", (), ("M", "C")),
        ):
            _check_signal(name, getattr(self, name), known, free)
        if self.question is not None and self.question.shape[1] != width:
            raise ValueError(f"question must be (M, {width}), got {tuple(self.question.shape)}")
        if any(not 0 <= sink < tokens_per_frame for sink in self.sinks):
            raise ValueError(f"sinks must lie in [0, {tokens_per_frame}), got {self.sinks}")

    def signal(self, name: str) -> Tensor:
        """The field of this name, for a method that names it in `needs`: it is not `None` then."""
        found: Tensor = getattr(self, name)
        return found


@dataclass(frozen=True, eq=False)
class CompressedVideo:
    """The tokens of a clip that go into the language model.

    Attributes:
        tokens: (K, D), rows in the order of `indices`.
        indices: (K,) int64, ascending and unique; flat position t * H * W + h * W + w of every kept
            token.
        grid: (T, H, W) before anything was dropped.
        timestamps: (T,) float64 seconds.
        source: Length and height of the clip in its file; `None` if unknown.
        companions: (K, E, D) rows that belong to the tokens; see `VisualFeatures`.
    """

    tokens: Tensor
    indices: Tensor
    grid: tuple[int, int, int]
    timestamps: Tensor
    source: ClipSource | None = None
    companions: Tensor | None = None

    def __post_init__(self) -> None:
        """Check that indices are ascending, unique, in range, and match the tokens."""
        _check_signal("companions", self.companions, (len(self.tokens),), ("E", "D"))
        if self.tokens.ndim != 2 or tuple(self.indices.shape) != (len(self.tokens),):
            raise ValueError(f"tokens (K, D) and indices (K,) do not fit, K = {len(self.indices)}")
        if str(self.indices.dtype) != "torch.int64":
            raise ValueError(f"indices must be int64, got {self.indices.dtype}")
        if tuple(self.timestamps.shape) != (self.grid[0],):
            raise ValueError(f"timestamps must be (T,) of the grid {self.grid}")
        # One comparison, so that one device synchronisation checks order, uniqueness and range
        # together.
        ok = (self.indices[1:] > self.indices[:-1]).all() & (self.indices >= 0).all()
        if not bool(ok & (self.indices < self.num_total).all()):
            raise ValueError(f"indices must be ascending, unique and in [0, {self.num_total})")

    @property
    def num_total(self) -> int:
        """Tokens before compression, T * H * W."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def num_kept(self) -> int:
        """Tokens after compression, K."""
        return len(self.indices)

    def counted_from(self, start_s: float) -> CompressedVideo:
        """Shift the timestamps to start at the clip's lower bound.

        Both reference harnesses cut bounded clips out of the video first, so times in a prompt
        start at 0.

        Args:
            start_s: The clip's lower bound in seconds. If the first (nearest) frame lies before
                it, that frame's time is 0.
        """
        begin = self.timestamps[0].clamp(max=start_s)
        return replace(self, timestamps=self.timestamps - begin)


def _check_signal(
    name: str, signal: Tensor | None, known: tuple[int, ...], free: tuple[str, ...]
) -> None:
    """Raise unless the signal has the sizes `known`, followed by one axis per name in `free`."""
    if signal is None:
        return
    shape = tuple(signal.shape)
    if len(shape) != len(known) + len(free) or shape[: len(known)] != known:
        wanted = ", ".join(map(str, (*known, *free)))
        raise ValueError(f"{name} must be ({wanted}), got {shape}")


@dataclass(frozen=True)
class Question:
    """One question about a clip.

    Attributes:
        id: Unique within its benchmark.
        text: The bare question, without options and without instructions.
        choices: The options' texts in order, without letters; empty for a free-form question.
        answer: Index of the correct choice; `None` when unknown or free-form.
        groups: Groups of questions that this one is counted in, e.g. `{"duration": "short", "task":
            "counting"}`.
        accepted: Correct answers to a free-form question, any of which counts; empty if replies are
            recorded and not scored.
        match: Whether a reply must equal an accepted answer or contain one
            (`benchmarks.scoring.judge.matches`).
        span: Correct (start, end) in seconds of the file, start <= end, for a question about the
            time of an event; `None` for other questions.
        other: A question about another clip, which controls read in place of this one; set in jobs
            with such a control.
    """

    id: str
    text: str
    choices: tuple[str, ...] = ()
    answer: int | None = None
    groups: Mapping[str, str] = field(default_factory=lambda: _NO_GROUPS)
    accepted: tuple[str, ...] = ()
    match: Match = "exact"
    span: tuple[float, float] | None = None
    other: Question | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check that there is one kind of answer and that it is valid."""
        object.__setattr__(self, "choices", tuple(self.choices))
        if self.answer is not None:
            object.__setattr__(self, "answer", int(self.answer))  # a NumPy integer from a table
            if not 0 <= self.answer < len(self.choices):
                raise InputError(
                    f"question {self.id!r}: answer {self.answer} is no index of a choice"
                )
        if self.span is not None:
            start, end = self.span
            if self.choices or self.accepted or not 0 <= start <= end < math.inf:
                raise InputError(
                    f"question {self.id!r}: span must be (start, end) alone, got {self.span}"
                )


@dataclass(frozen=True)
class Subtitles:
    """Subtitles of a video, to be shown with its questions.

    Attributes:
        text: The content of their file, in the format of the release or in that of the benchmark's
            own rule; `None` for a video without.
    """

    text: str | None


@dataclass(frozen=True)
class VideoItem:
    """The unit of work: one clip with all its questions.

    Attributes:
        video_id: Unique within its benchmark; two clips of one file have two ids.
        path: A video file, or a directory of frames.
        clip: (start, end) in seconds, or `None` for the whole file.
        questions: All questions about this clip.
        subtitles: Subtitles shown with the questions; `None` for none.
    """

    video_id: str
    path: str
    clip: tuple[float, float] | None = None
    questions: tuple[Question, ...] = ()
    subtitles: Subtitles | None = None

    def __post_init__(self) -> None:
        """Check that the clip does not end before it starts."""
        if self.clip is not None and not 0 <= self.clip[0] <= self.clip[1]:
            raise InputError(
                f"video {self.video_id!r}: bounds {self.clip} must be 0 <= start <= end"
            )


@dataclass(frozen=True)
class Prompt:
    """The user turn of one question: text, the clip, text.

    A benchmark's protocol determines the text, a model the order (LLaVA always puts the clip
    first).

    Attributes:
        before: Text before the clip.
        after: Text after the clip.
    """

    before: str
    after: str


@dataclass(frozen=True)
class Answer:
    """The reply of a language model to one question.

    Attributes:
        text: The decoded reply, special tokens removed.
        choice: Index of the option that the protocol reads from the reply; `None` if it reads none.
        status: `"ok"`, `"unparsed"` (there is a text, but no option can be read from it) or a
            failure.
        prompt_tokens: Length of the sequence that was prefilled for this question, visual tokens
            included.
        new_tokens: Tokens generated, the end-of-turn token included.
        prefill_ms: Time of the language model's prefill for this question in milliseconds; a shared
            prefix counts once, with the clip's first question.
        ttft_ms: Time from the start of answering to the first new token, in milliseconds.
        decode_ms: Time for the new tokens after the first, in milliseconds.
        visual_tokens: How many of `prompt_tokens` are the clip's, the model's newline tokens among
            them included.
        clip_text_tokens: How many of `prompt_tokens` are text that belongs to the clip (time
            stamps, marks around frames); not among `visual_tokens`.
        first_token_at: When the first new token was known, on the clock of `time.perf_counter`.
    """

    text: str
    choice: int | None
    status: Status
    prompt_tokens: int
    new_tokens: int
    prefill_ms: float
    ttft_ms: float
    decode_ms: float
    visual_tokens: int = 0
    clip_text_tokens: int = 0
    first_token_at: float = 0.0
