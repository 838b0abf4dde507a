"""Frames of a clip as small pictures, decoded on request.

As in the pipeline, one child process decodes, with a limit of time and memory, and only the frames
that the model was shown. What was decoded last stays in memory, up to a bound.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.redaction import redacted
from pipeline.runtime.child import Child, ChildStartError, CrashError
from pipeline.storage.urls import is_url
from pipeline.storage.videos import VideoCache
from tango_core.errors import InputError
from tango_core.types import VideoFrames
from tango_core.video import FrameSpec, decode_frames

PER_SPRITE = 8
"""Frames in one picture, one below the other: a clip is a few requests and not one per frame."""

_QUALITY = 82
_MEMORY_GIB = 4.0


class FramesMissingError(InputError):
    """The frames cannot be shown; the message says why and what to do."""


@dataclass(frozen=True)
class Clip:
    """Where the frames of a clip come from.

    Attributes:
        path: Video file, directory of frames, or URL of one.
        bounds: (start, end) in seconds, or `None` for all of it.
        fingerprint: Of the source when the run was made.
    """

    path: str
    bounds: tuple[float, float] | None
    fingerprint: str


@dataclass
class FrameDecoder:
    """Makes pictures of frames, and keeps those that were asked for last.

    Args:
        pixels: Area of one picture; its sides are those of the video.
        max_bytes: Of all pictures that are kept.
        timeout_s: Seconds that one clip may take.
        videos: Where videos of stores are fetched to.
    """

    pixels: int = 200_000
    max_bytes: int = 64 * 2**20
    timeout_s: float = 120.0
    videos: VideoCache = field(default_factory=lambda: VideoCache("~/.cache/tango-video", 50))

    def __post_init__(self) -> None:
        self._child = Child(memory_gib=_MEMORY_GIB)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Any, ...], list[bytes]] = OrderedDict()
        self._num_bytes = 0

    def sprites(
        self, clip: Clip, sampling: Mapping[str, Any], times: Sequence[float]
    ) -> list[bytes]:
        """JPEG pictures of `PER_SPRITE` frames each, one frame per time.

        Args:
            clip: Which clip.
            sampling: The `frames` of the cache's manifest: how the model's frames were chosen.
            times: (T,) seconds of the token grid; every time gets the frame that is nearest.

        Raises:
            FramesMissingError: If they cannot be decoded; one sentence.
        """
        name = (clip, repr(sorted(sampling.items())), tuple(times))
        with self._lock:  # one clip is decoded at a time
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
            made = pictures_of(self._decoded(clip, sampling), times)
            self._kept[name] = made
            self._num_bytes += sum(map(len, made))
            while self._num_bytes > self.max_bytes and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._num_bytes -= sum(map(len, oldest))
            return made

    def close(self) -> None:
        """End the child process."""
        self._child.close()

    def _decoded(self, clip: Clip, sampling: Mapping[str, Any]) -> VideoFrames:
        """The model's frames, small."""
        shown = redacted(clip.path)
        try:
            spec = _small(sampling, self.pixels)
            with ExitStack() as stack:
                path = clip.path
                if is_url(path):
                    path = stack.enter_context(self.videos.fetched(path, clip.fingerprint))
                frames: VideoFrames = self._child.call(
                    decode_frames,
                    path,
                    spec,
                    clip.bounds,
                    timeout_s=self.timeout_s,
                    about=shown,
                    what="decoder",
                )
            return frames
        except (ValueError, OSError, MemoryError, CrashError, ChildStartError) as error:
            text = redacted(" ".join(str(error).split())) or type(error).__name__
            raise FramesMissingError(f"The frames cannot be decoded: {text}") from error


def _small(sampling: Mapping[str, Any], pixels: int) -> FrameSpec:
    """How to choose the model's frames, in the video's own shape and a small size."""
    known = {one.name for one in fields(FrameSpec)}
    spec = FrameSpec(**{name: value for name, value in sampling.items() if name in known})
    return replace(spec, size=None, min_pixels=0, max_pixels=pixels, multiple=2, area=None)


def pictures_of(frames: VideoFrames, times: Sequence[float]) -> list[bytes]:
    """JPEG pictures of the frames nearest to some times, `PER_SPRITE` in each."""
    nearest = nearest_to(frames.timestamps, np.asarray(times, np.float64))
    chosen = frames.pixels[nearest]
    return [
        _jpeg(chosen[start : start + PER_SPRITE]) for start in range(0, len(chosen), PER_SPRITE)
    ]


def nearest_to(
    shown: npt.NDArray[np.float64], times: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """(T,) index of the frame nearest to each time.

    Repeated frames repeat their time; where there are as many frames as times they are the same.
    """
    if len(shown) == len(times):
        return np.arange(len(times))
    nearest = np.abs(shown[None, :] - times[:, None]).argmin(axis=1)
    return np.asarray(nearest, np.int64)


def _jpeg(frames: npt.NDArray[np.uint8]) -> bytes:
    """(n, h, w, 3) frames as one picture, one below the other."""
    from PIL import Image

    data = io.BytesIO()
    picture = np.ascontiguousarray(frames.reshape(-1, *frames.shape[2:]))
    Image.fromarray(picture).save(data, "JPEG", quality=_QUALITY, optimize=True)
    return data.getvalue()
