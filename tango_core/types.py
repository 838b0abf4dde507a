"""Data types of the project: questions, clips, features, compressed clips, answers.

Letters in docstrings: T temporal positions (frames; for Qwen2.5-VL pairs of frames), H and W the
token grid, L = H * W tokens per temporal position, D the width of the language model, K tokens
kept.

Every type is frozen and checks its own invariants when it is made, so that a wrong shape is
reported where it arises and not in a later stage. Importing this module does not import torch, so
that decode workers stay small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Status = Literal[
    "ok", "decode_failed", "decode_damaged", "encode_failed", "answer_failed", "unparsed"
]
Positions = Literal["renumbered", "original"]
Match = Literal["exact", "contains"]

_NO_GROUPS: Mapping[str, str] = MappingProxyType({})


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
            (`benchmarks.free_form.matches`).
        span: When it happens, for a question about that: (start, end) in seconds of the file, the
            start not after the end; `None` for any other question.
    """

    id: str
    text: str
    choices: tuple[str, ...] = ()
    answer: int | None = None
    groups: Mapping[str, str] = field(default_factory=lambda: _NO_GROUPS)
    accepted: tuple[str, ...] = ()
    match: Match = "exact"
    span: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Check that there is one kind of answer, and that it can be right."""
        if self.answer is not None and not 0 <= self.answer < len(self.choices):
            raise ValueError(
                f"question {self.id!r}: answer {self.answer} is not an index into its "
                f"{len(self.choices)} choices"
            )
        if self.accepted and self.choices:
            raise ValueError(
                f"question {self.id!r}: only a free-form question has accepted answers; "
                "leave accepted or choices empty"
            )
        if self.span is not None:
            start, end = self.span
            if self.choices or self.accepted or not 0 <= start <= end < np.inf:
                raise ValueError(
                    f"question {self.id!r}: span must be (start, end) in seconds with 0 <= start "
                    f"<= end, of a question without choices and accepted answers, got {self.span}"
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
        subtitles: Shown with the questions; `None` where they are put without subtitles.
    """

    video_id: str
    path: str
    clip: tuple[float, float] | None = None
    questions: tuple[Question, ...] = ()
    subtitles: Subtitles | None = None

    def __post_init__(self) -> None:
        """Check that the clip does not end before it starts."""
        if self.clip is not None and not 0 <= self.clip[0] <= self.clip[1]:
            raise ValueError(
                f"video {self.video_id!r}: clip bounds {self.clip} must satisfy 0 <= start <= end"
            )


@dataclass(frozen=True)
class Prompt:
    """The user turn of one question: text, the clip, text.

    A benchmark's protocol chooses the words; a model chooses their order (LLaVA puts the clip
    first in all cases).

    Attributes:
        before: Text before the clip.
        after: Text after the clip.
    """

    before: str
    after: str


@dataclass(frozen=True)
class ClipSource:
    """Length and height of a clip before sampling and resizing; some prompts state them.

    Attributes:
        duration_s: Length in seconds: the clip's frames divided by the file's average rate.
        frame_height: Of the upright frames in the file, in pixels.
    """

    duration_s: float
    frame_height: int


@dataclass(frozen=True, eq=False)
class VideoFrames:
    """Decoded frames of one clip.

    Attributes:
        pixels: (F, h, w, 3) uint8 RGB.
        timestamps: (F,) float64 seconds from the start of the file, not descending; repeated frames
            repeat their time.
        decoder: The library that produced the frames, with its version, e.g. `"pyav 18.1.0"`.
        warnings: Problems that do not stop decoding, e.g. that the file ends before its header
            says.
        source: The clip as it is in its file; `None` if unknown.
        damage: Why the frames may show something else than the video did before the file was
            damaged; empty for a healthy clip.
    """

    pixels: np.ndarray
    timestamps: np.ndarray
    decoder: str = ""
    warnings: tuple[str, ...] = ()
    source: ClipSource | None = None
    damage: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check shapes and types."""
        if self.pixels.ndim != 4 or self.pixels.shape[-1] != 3 or self.pixels.dtype != np.uint8:
            raise ValueError(
                f"pixels must be (F, h, w, 3) uint8, got {self.pixels.shape} {self.pixels.dtype}"
            )
        if self.timestamps.shape != (len(self.pixels),) or self.timestamps.dtype != np.float64:
            raise ValueError(
                f"timestamps must be ({len(self.pixels)},) float64, got {self.timestamps.shape} "
                f"{self.timestamps.dtype}"
            )


@dataclass(frozen=True, eq=False)
class VisualFeatures:
    """All visual tokens of a clip, and the signals by which methods rank them.

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
        sinks: Flat grid positions that attract attention in every video; per encoder, ascending
            order not required.
        source: The clip as it is in its file; `None` if unknown.
        companions: (T, L, E, D) rows that go with every token into the first E layers of the
            language model (DeepStack of Qwen3-VL), in the dtype of the tokens; `None` for models
            without. Methods rank and merge by `tokens` alone.
        anchored: Whether a merged token takes the companions of the token at its position; else
            they are merged with the weights of the tokens.
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

    def __post_init__(self) -> None:
        """Check that everything describes the same T x H x W tokens."""
        height, width = self.grid
        if self.tokens.ndim != 3 or self.tokens.shape[1] != height * width:
            raise ValueError(
                f"tokens must be (T, {height * width}, D) on grid {self.grid}, "
                f"got {tuple(self.tokens.shape)}"
            )
        num_frames, tokens_per_frame, _ = self.tokens.shape
        if num_frames == 0:
            raise ValueError("tokens must hold at least one frame, got 0")
        if tuple(self.timestamps.shape) != (num_frames,):
            raise ValueError(
                f"timestamps must be ({num_frames},), got {tuple(self.timestamps.shape)}"
            )
        for name in ("saliency", "attention", "keys"):
            value = getattr(self, name)
            if value is not None and tuple(value.shape[:2]) != (num_frames, tokens_per_frame):
                raise ValueError(
                    f"{name} must start with ({num_frames}, {tokens_per_frame}), "
                    f"got {tuple(value.shape)}"
                )
        if self.frame_embeddings is not None and len(self.frame_embeddings) != num_frames:
            raise ValueError(
                f"frame_embeddings must be ({num_frames}, Dv), "
                f"got {tuple(self.frame_embeddings.shape)}"
            )
        _check_companions(self.companions, self.tokens)
        if any(not 0 <= sink < tokens_per_frame for sink in self.sinks):
            raise ValueError(f"sinks must lie in [0, {tokens_per_frame}), got {self.sinks}")


@dataclass(frozen=True, eq=False)
class CompressedVideo:
    """The tokens of a clip that go into the language model.

    Attributes:
        tokens: (K, D), rows in the order of `indices`.
        indices: (K,) int64, ascending and unique; flat position t * H * W + h * W + w of every kept
            token.
        grid: (T, H, W) before anything was dropped.
        timestamps: (T,) float64 seconds.
        source: The clip as it is in its file; `None` if unknown.
        companions: (K, E, D) rows that go with the tokens; see `VisualFeatures`.
    """

    tokens: Tensor
    indices: Tensor
    grid: tuple[int, int, int]
    timestamps: Tensor
    source: ClipSource | None = None
    companions: Tensor | None = None

    def __post_init__(self) -> None:
        """Check that indices are ascending, unique, in range, and match the tokens."""
        _check_companions(self.companions, self.tokens)
        if self.tokens.ndim != 2 or tuple(self.indices.shape) != (len(self.tokens),):
            raise ValueError(
                f"tokens (K, D) and indices (K,) disagree: {tuple(self.tokens.shape)} and "
                f"{tuple(self.indices.shape)}"
            )
        if str(self.indices.dtype) != "torch.int64":
            raise ValueError(f"indices must be int64, got {self.indices.dtype}")
        if tuple(self.timestamps.shape) != (self.grid[0],):
            raise ValueError(
                f"timestamps must be ({self.grid[0]},), got {tuple(self.timestamps.shape)}"
            )
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
        """The clip with times from where it begins in its file, as if it had been cut out.

        Both harnesses cut bounded clips out before a model sees them, so that times in a prompt
        begin with 0.

        Args:
            start_s: The clip's lower bound. A first frame before it, which is the nearest one, has
                the time 0.
        """
        begin = self.timestamps[0].clamp(max=start_s)
        return replace(self, timestamps=self.timestamps - begin)


@dataclass(frozen=True)
class Answer:
    """The reply of a language model to one question.

    Attributes:
        text: The decoded reply, special tokens removed.
        choice: Index of the option the reply names, as the benchmark's protocol reads it; `None` if
            it names none.
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


def _check_companions(companions: Tensor | None, tokens: Tensor) -> None:
    """Refuse companions that are not E rows for every token, of its width and type."""
    if companions is None:
        return
    places, width = tuple(tokens.shape[:-1]), tokens.shape[-1]
    shape = tuple(companions.shape)
    fits = len(shape) == len(places) + 2 and (shape[:-2], shape[-1]) == (places, width)
    if not fits or shape[-2] < 1 or companions.dtype != tokens.dtype:
        raise ValueError(
            f"companions must be {(*places, 'E', width)} {tokens.dtype}, "
            f"got {shape} {companions.dtype}"
        )
