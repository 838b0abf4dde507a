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
import os
import secrets
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tango_core.benchmarks.base import Benchmark, check_limit
from tango_core.benchmarks.protocols.protocol import under_each_harness
from tango_core.benchmarks.shapes import world
from tango_core.benchmarks.shapes.questions import ASKED, PROTOCOL, pick, questions
from tango_core.benchmarks.shapes.render import render
from tango_core.errors import InputError
from tango_core.types import VideoItem

logger = logging.getLogger(__name__)

NUM_CLIPS = {"train": 1000, "validation": 100, "test": 200}
"""Clips per split."""
QUESTIONS_PER_CLIP = 5
"""Questions per clip, of different types; clips of one scene can be asked three to five."""
FPS = Fraction(1 / world.SECONDS_PER_MOMENT)
CRF = 18
PRESET = "medium"
DEFAULT_ROOT = "data/shapes"

_PARAMETERS = {
    "world_version": world.WORLD_VERSION,
    "asked": ASKED,
    "frame": world.FRAME,
    "num_moments": world.NUM_MOMENTS,
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

    def _open(self, root: str | None) -> None:
        """Name the directory of the generated files."""
        if self.seed < 0:
            raise InputError(f"benchmark.seed must be 0 or more, got {self.seed}")
        if root is not None and "://" in root:
            raise InputError(f"benchmark.root must be a local directory for shapes, got {root!r}")
        text = json.dumps(_PARAMETERS, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        base, self.root = Path(root or DEFAULT_ROOT).absolute(), None
        self.generated_in = base / f"{self.split}-seed{self.seed}-{digest}"

    def items(self, limit: int | None = None) -> Iterator[VideoItem]:
        """Yield the split's clips, each as soon as its file is there.

        Args:
            limit: Only the first `limit` clips are generated and yielded; `None` for all.

        Raises:
            ValueError: If the directory cannot be made or `limit` is negative.
        """
        check_limit(limit)
        self._prepare()
        for index, item in enumerate(self.expected_items(limit)):
            write_once(Path(item.path), partial(self._write, index))
            yield item

    def expected_items(self, limit: int | None = None) -> Iterator[VideoItem]:
        """Yield the same clips as `items`, whether their files are there or not.

        Raises:
            ValueError: If `limit` is negative.
        """
        check_limit(limit)
        for index in islice(range(NUM_CLIPS[self.split]), limit):
            clip = world.clip_at(self.split, self.seed, index)
            rng = world.rng_of(self.split, self.seed, index, "pick")
            asked = pick(questions(clip), QUESTIONS_PER_CLIP, rng)
            yield VideoItem(clip.name, str(self.generated_in / f"{index:05d}.mp4"), None, asked)

    def _write(self, index: int, path: Path) -> None:
        """Render a clip into a file."""
        write_mp4(path, render(world.clip_at(self.split, self.seed, index)), FPS)

    def _prepare(self) -> None:
        """Make the directory and say in it what its files were made with."""
        if not self.generated_in.exists():
            logger.info("generating clips in %s", self.generated_in)
        try:
            self.generated_in.mkdir(parents=True, exist_ok=True)
            note = json.dumps(_PARAMETERS, indent=2, sort_keys=True)
            write_once(self.generated_in / "parameters.json", lambda aside: aside.write_text(note))
        except OSError as error:
            raise InputError(
                f"benchmark.root: cannot write to {self.generated_in} ({error.strerror}); "
                "set benchmark.root to a directory you may write to"
            ) from error


def write_once(path: Path, write: Callable[[Path], object]) -> None:
    """Make a file unless it is there; it appears complete or not at all.

    Several processes may do so at once: the first one to finish wins. A link, unlike a rename,
    never replaces a file, so its time of change, which caches go by, stays.

    Args:
        path: Where the file shall be; its directory exists.
        write: Writes the content to the path it is given, a hidden file in the same directory.
    """
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        write(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_mp4(path: Path, frames: npt.NDArray[np.uint8], fps: Fraction) -> None:
    """Encode frames with x264 as yuv420p.

    Equal frames give equal bytes on one machine: one thread, no dates and no versions in the file.

    Args:
        path: The file, whatever its suffix.
        frames: (F, h, w, 3) uint8 RGB, h and w even.
        fps: Frames per second.
    """
    import av

    with av.open(str(path), "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        stream.options = {"crf": str(CRF), "preset": PRESET, "flags": "+bitexact"}
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
