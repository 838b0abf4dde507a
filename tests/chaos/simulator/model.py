"""A model, a benchmark and a decoder of a few bytes, for the real stages to work with.

Frames are made of the bytes of the clip's file, tokens of the frames, replies of tokens and
questions, so that an answer shows whether everything before it was the clip's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pipeline.runtime.child import CrashError
from tango_core.benchmarks import Benchmark
from tango_core.models.base import LanguageModel, LLMShape, ModelSpec, VisionEncoder
from tango_core.models.family import ModelEntry, ModelFamily, ModelRequest
from tango_core.types import (
    Answer,
    CompressedVideo,
    Prompt,
    Question,
    VideoFrames,
    VideoItem,
    VisualFeatures,
)
from tango_core.video import FrameSpec, decode_frames

FRAMES, HEIGHT, WIDTH, WIDE = 2, 2, 2, 4
QUESTIONS = 2
MOST_CLIPS = 8
DECODE_S, ENCODE_S, ANSWER_S = 2.5, 1.0, 0.5


class Clips(Benchmark):
    """Clips with two questions each."""

    def items(self, limit: int | None = None) -> Iterator[VideoItem]:
        assert self.root is not None
        for index in range(limit or MOST_CLIPS):
            questions = tuple(
                Question(f"q{index}-{number}", f"What is {number}?", ("a", "b", "c", "d"), 1)
                for number in range(QUESTIONS)
            )
            path = str(self.root / f"clip-{index}.mp4")
            yield VideoItem(f"clip-{index}", path, None, questions)


class Family(ModelFamily):
    """The smallest model there is."""

    def describe(self, request: ModelRequest, options: Any) -> ModelSpec:
        return ModelSpec(
            name=request.name,
            path=request.path,
            revision=None,
            digest="simulated",
            dtype="float32",
            device="cpu",
            frames=FrameSpec(FRAMES, decoder="pyav"),
            llm=LLMShape(2, WIDE, WIDE, 1, 1, WIDE, 16),
            provides=frozenset(),
            options=options,
            grid=(HEIGHT, WIDTH),
        )

    def load_encoder(self, spec: ModelSpec) -> VisionEncoder:
        return Encoder()

    def load_language_model(self, spec: ModelSpec) -> LanguageModel:
        return Replies()


class Encoder(VisionEncoder):
    """Tokens are the pixels."""

    def encode(self, frames: VideoFrames, needs: frozenset[str] = frozenset()) -> VisualFeatures:
        work("encode", ENCODE_S)
        pixels = torch.from_numpy(frames.pixels.astype(np.float32).copy())
        tokens = pixels.reshape(FRAMES, HEIGHT * WIDTH, -1)[:, :, :1].repeat(1, 1, WIDE)
        tokens = tokens * torch.arange(1, WIDE + 1) / 7
        times = torch.from_numpy(frames.timestamps.copy())
        return VisualFeatures(tokens, (HEIGHT, WIDTH), times, source=frames.source)


class Replies(LanguageModel):
    """A reply names an option and a digest of everything that was shown."""

    def answer(
        self, video: CompressedVideo, prompts: Sequence[Prompt], **options: Any
    ) -> list[Answer]:
        work("answer", ANSWER_S)
        shown = video.tokens.numpy().tobytes() + video.indices.numpy().tobytes()
        replies = []
        for prompt in prompts:
            digest = hashlib.sha256(shown + prompt.after.encode()).hexdigest()
            text = f"{'ABCD'[int(digest[0], 16) % 4]}. {digest[:8]}"
            replies.append(Answer(text, None, "ok", 9, 2, 1.0, 1.0, 1.0, video.num_kept))
        return replies


FAMILY = Family()
ENTRY = ModelEntry(__name__, "simulated", FRAMES)


class InlineChild:
    """In the place of `pipeline.runtime.child.Child`: no process, no video library."""

    def call(
        self, function: Callable[..., Any], path: str, *args: Any, timeout_s: float, **about: Any
    ) -> Any:
        if function is not decode_frames:
            return None
        how = work("decode", DECODE_S)
        if how == "crash":
            raise CrashError(f"{path}: the decoder crashed")
        if how == "hang":
            work("decode", timeout_s)
            raise TimeoutError(f"{path}: no frames within {timeout_s:g} s")
        with open(path, "rb") as file:
            seed = hashlib.sha256(file.read()).digest()
        values = np.frombuffer((seed * 2)[: FRAMES * HEIGHT * WIDTH * 3], np.uint8)
        pixels = values.reshape(FRAMES, HEIGHT, WIDTH, 3)
        return VideoFrames(pixels, np.arange(FRAMES, dtype=np.float64), "simulated")


def work(what: str, seconds: float) -> str:
    """Let the time of some work pass in the world that runs; gives what goes wrong with it."""
    from tests.chaos.simulator.running import Running

    return Running.now.work(what, seconds)
