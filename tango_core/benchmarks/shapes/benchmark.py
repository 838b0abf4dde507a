"""Shapes: the embedded benchmark, a small world of moving icons, generated when it is needed.

A clip is 16 moments, half a second apart, in an H.264 file of 2 frames per second and 8 seconds:
one frame per moment, so that frames sampled from the file are frames of the world. Whatever a
question asks for lasts at least three moments, and uniform samples of 8 to 16 frames are at most
three apart.

Splits and seeds share no clip: all of a clip is drawn from streams keyed by (split, seed, index).
Models are trained on the split "train", so "test" is unseen under every seed; `benchmark.seed`
draws a fresh set of test clips.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import ClassVar

from tango_core.benchmarks.base import Benchmark
from tango_core.benchmarks.protocols.protocol import under_each_harness
from tango_core.benchmarks.shapes.draw import WORLD_VERSION, clip_at, dense_clip_at, rng_of
from tango_core.benchmarks.shapes.questions import (
    ASKED,
    PROTOCOL,
    TYPES,
    VOCABULARY,
    pick,
    questions,
    reply_to,
    words,
)
from tango_core.benchmarks.shapes.render import render
from tango_core.benchmarks.shapes.video import CRF, PRESET, write_mp4, write_once
from tango_core.benchmarks.shapes.world import (
    CAMERAS,
    COLORS,
    FRAME,
    NUM_MOMENTS,
    SCENES,
    SECONDS_PER_MOMENT,
    SHAPES,
    Box,
    ClipDescription,
    Scene,
    Sprite,
    sample_moments,
)
from tango_core.types import VideoItem

__all__ = [
    "ASKED",
    "CAMERAS",
    "COLORS",
    "FRAME",
    "NUM_MOMENTS",
    "PROTOCOL",
    "SCENES",
    "SECONDS_PER_MOMENT",
    "SHAPES",
    "TYPES",
    "VOCABULARY",
    "Box",
    "ClipDescription",
    "Scene",
    "ShapesBenchmark",
    "Sprite",
    "clip_at",
    "dense_clip_at",
    "pick",
    "questions",
    "render",
    "reply_to",
    "rng_of",
    "sample_moments",
    "words",
    "write_mp4",
]

logger = logging.getLogger(__name__)

NUM_CLIPS = {"train": 1000, "validation": 100, "test": 200}
"""Clips per split."""
QUESTIONS_PER_CLIP = 5
"""Questions per clip, of different types; clips of one scene can be asked three to five."""
FPS = Fraction(1 / SECONDS_PER_MOMENT)
DEFAULT_ROOT = "data/shapes"

_PARAMETERS = {
    "world_version": WORLD_VERSION,
    "asked": ASKED,
    "frame": FRAME,
    "num_moments": NUM_MOMENTS,
    "fps": str(FPS),
    "codec": f"libx264 yuv420p crf {CRF} preset {PRESET}",
}


class ShapesBenchmark(Benchmark):
    """The embedded world as a benchmark of video files.

    Files lie in `<root>/<split>-seed<seed>-<hash of the generator's parameters>/00000.mp4`, next to
    `parameters.json`; a changed generator therefore writes new files and never reads old ones.

    Args:
        root: Where the files are or shall be written; `None` for `data/shapes` where one works.
        split: One of `NUM_CLIPS`.
        seed: Which draw of the split, >= 0.
        protocol: Any of the known names; the world has one prompt and one reading rule.

    Raises:
        ValueError: If a name is unknown, the seed negative, or `root` no place for a directory.
    """

    name = "shapes"
    splits: ClassVar = dict.fromkeys(NUM_CLIPS)
    protocols: ClassVar = under_each_harness(PROTOCOL)
    generated_in: Path

    def __init__(
        self,
        root: str | None = None,
        split: str = "test",
        seed: int = 0,
        protocol: str = "vlmevalkit",
    ) -> None:
        super().__init__(None, split, seed, protocol)
        if seed < 0:
            raise ValueError(f"benchmark.seed must be 0 or more, got {seed}")
        if root is not None and "://" in root:
            raise ValueError(f"benchmark.root must be a local directory for shapes, got {root!r}")
        text = json.dumps(_PARAMETERS, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        base = Path(root or DEFAULT_ROOT).absolute()
        self.generated_in = base / f"{split}-seed{seed}-{digest}"

    def items(self, limit: int | None = None) -> Iterator[VideoItem]:
        """Yield the split's clips, each as soon as its file is there.

        Args:
            limit: Only the first `limit` clips are generated and yielded; `None` for all.

        Raises:
            ValueError: If the directory cannot be made or `limit` is negative.
        """
        number = self._number(limit)
        self._prepare()
        missing = sum(not self._path(index).exists() for index in range(number))
        if missing:
            logger.info("generating %d clips in %s", missing, self.generated_in)
        for index in range(number):
            clip = clip_at(self.split, self.seed, index)
            write_once(self._path(index), partial(_write_clip, clip))
            yield self._item(index, clip)

    def expected_items(self, limit: int | None = None) -> Iterator[VideoItem]:
        """Yield the same clips as `items`, whether their files are there or not.

        Raises:
            ValueError: If `limit` is negative.
        """
        for index in range(self._number(limit)):
            yield self._item(index, clip_at(self.split, self.seed, index))

    def _number(self, limit: int | None) -> int:
        """Clips of the split, or the first `limit` of them."""
        if limit is not None and limit < 0:
            raise ValueError(f"limit must be 0 or more, got {limit}")
        number = NUM_CLIPS[self.split]
        return number if limit is None else min(limit, number)

    def _item(self, index: int, clip: ClipDescription) -> VideoItem:
        """A clip with the questions that are asked about it."""
        rng = rng_of(self.split, self.seed, index, "pick")
        asked = pick(questions(clip), QUESTIONS_PER_CLIP, rng)
        return VideoItem(clip.name, str(self._path(index)), None, asked)

    def _path(self, index: int) -> Path:
        """Return a clip's file."""
        return self.generated_in / f"{index:05d}.mp4"

    def _prepare(self) -> None:
        """Make the directory and say in it what its files were made with."""
        try:
            self.generated_in.mkdir(parents=True, exist_ok=True)
            note = json.dumps(_PARAMETERS, indent=2, sort_keys=True)
            write_once(self.generated_in / "parameters.json", lambda aside: aside.write_text(note))
        except OSError as error:
            raise ValueError(
                f"benchmark.root: cannot write to {self.generated_in} ({error.strerror}); "
                "set benchmark.root to a directory you may write to"
            ) from error


def _write_clip(clip: ClipDescription, path: Path) -> None:
    """Render a clip into a file."""
    write_mp4(path, render(clip), FPS)
