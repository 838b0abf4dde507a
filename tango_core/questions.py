"""Questions, prompts and replies.

Import these types from `types.py`. Each is frozen and checks its own invariants when it is made.
Importing this module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from tango_core.errors import InputError

Status = Literal[
    "ok", "decode_failed", "decode_damaged", "encode_failed", "answer_failed", "unparsed"
]
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
