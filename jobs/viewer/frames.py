"""Frames of a clip as small pictures, decoded on request.

As in the pipeline, a child process with a time and a memory limit decodes only the frames that were
passed to the model. The latest pictures are cached in memory, up to a limit.
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
"""Number of frames per picture, stacked vertically, so that a clip needs few requests."""

_QUALITY = 82
_MEMORY_GIB = 4.0


class FramesMissingError(InputError):
    """The frames cannot be decoded; the message has the reason and the next step."""


@dataclass(frozen=True)
class Clip:
    """Source of a clip's frames.

    Attributes:
        path: Video file, directory of frames, or URL of one.
        bounds: (start, end) in seconds; `None` for the whole video.
        fingerprint: Fingerprint of the source at the time of the run.
    """

    path: str
    bounds: tuple[float, float] | None
    fingerprint: str


@dataclass
class FrameDecoder:
    """Decodes frames to pictures and caches the latest ones.

    Args:
        pixels: Area of a frame in pixels, with the video's aspect ratio.
        max_bytes: Maximum size of all cached pictures.
        timeout_s: Time limit per clip in seconds.
        videos: Cache for videos fetched from stores.
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
            clip: Source of the frames.
            sampling: `frames` of the cache's manifest: sampling settings of the model's frames.
            times: (T,) seconds of the token grid; the nearest frame is used for every time.

        Raises:
            FramesMissingError: If the frames cannot be decoded; the message is one sentence.
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
        """The model's frames at a small size."""
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
    """Frame spec that samples the model's frames at a small size and native aspect ratio."""
    known = {one.name for one in fields(FrameSpec)}
    spec = FrameSpec(**{name: value for name, value in sampling.items() if name in known})
    return replace(spec, size=None, min_pixels=0, max_pixels=pixels, multiple=2, area=None)


def pictures_of(frames: VideoFrames, times: Sequence[float]) -> list[bytes]:
    """JPEG pictures of the frames nearest to the given times, `PER_SPRITE` frames each."""
    nearest = nearest_to(frames.timestamps, np.asarray(times, np.float64))
    chosen = frames.pixels[nearest]
    return [
        _jpeg(chosen[start : start + PER_SPRITE]) for start in range(0, len(chosen), PER_SPRITE)
    ]


def nearest_to(
    shown: npt.NDArray[np.float64], times: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """(T,) index of the frame nearest to each time.

    Repeated frames have equal times; with as many frames as times, frame i belongs to time i.
    """
    if len(shown) == len(times):
        return np.arange(len(times))
    nearest = np.abs(shown[None, :] - times[:, None]).argmin(axis=1)
    return np.asarray(nearest, np.int64)


def _jpeg(frames: npt.NDArray[np.uint8]) -> bytes:
    """Stack (n, h, w, 3) frames vertically in one JPEG."""
    from PIL import Image

    data = io.BytesIO()
    picture = np.ascontiguousarray(frames.reshape(-1, *frames.shape[2:]))
    Image.fromarray(picture).save(data, "JPEG", quality=_QUALITY, optimize=True)
    return data.getvalue()
