"""Frames of a clip as small pictures, decoded on request.

As in the pipeline, a child process with a time and a memory limit decodes only the frames that were
passed to the model. The pictures of the latest clips are cached in memory.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
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
# Clips whose pictures are cached.
_NUM_CACHED = 16


class FramesMissingError(InputError):
    """The frames cannot be decoded; the message has the reason and the next step."""


@dataclass(frozen=True)
class View:
    """Frames of a clip as a model saw them.

    Attributes:
        path: Video file, directory of frames, or URL of one.
        bounds: (start, end) in seconds; `None` for the whole video.
        fingerprint: Fingerprint of the source at the time of the run.
        sampling: `frames` of the cache's manifest as JSON: the sampling settings of the model's
            frames; "" if they are not recorded.
        times: (T,) seconds of the token grid; the nearest frame is used for every time.
    """

    path: str
    bounds: tuple[float, float] | None
    fingerprint: str
    sampling: str
    times: tuple[float, ...]

    @property
    def num_sprites(self) -> int:
        """Number of pictures into which the frames are combined."""
        return -(-len(self.times) // PER_SPRITE)


def view_of(
    asked: Mapping[str, Any], sampling: Mapping[str, Any] | None, times: Iterable[float]
) -> View:
    """The frames of a row of `clips/*.parquet`; see `View`."""
    start, end = asked["clip_start"], asked["clip_end"]
    bounds = None if start is None else (start, end)
    settings = json.dumps(dict(sampling), sort_keys=True) if sampling else ""
    return View(asked["path"], bounds, asked["source_fingerprint"], settings, tuple(times))


@dataclass
class FrameDecoder:
    """Decodes frames to pictures and caches those of the latest clips.

    Args:
        pixels: Area of a frame in pixels, with the video's aspect ratio.
        timeout_s: Time limit per clip in seconds.
        videos: Cache for videos fetched from stores.
    """

    pixels: int = 200_000
    timeout_s: float = 120.0
    videos: VideoCache = field(default_factory=lambda: VideoCache("~/.cache/tango-video", 50))

    def __post_init__(self) -> None:
        self._child = Child(memory_gib=_MEMORY_GIB)
        self._lock = threading.Lock()
        self._cached = lru_cache(_NUM_CACHED)(self._made)

    def sprites(self, view: View) -> list[bytes]:
        """JPEG pictures of `PER_SPRITE` frames each, one frame per time.

        Raises:
            FramesMissingError: If the frames cannot be decoded; the message is one sentence.
        """
        if not view.sampling:
            raise FramesMissingError("The token cache has no record of its frame sampling.")
        with self._lock:  # one clip is decoded at a time
            return self._cached(view)

    def close(self) -> None:
        """End the child process."""
        self._child.close()

    def _made(self, view: View) -> list[bytes]:
        """Decode the model's frames at a small size and combine them into pictures."""
        known, settings = {one.name for one in fields(FrameSpec)}, json.loads(view.sampling)
        settings = {name: value for name, value in settings.items() if name in known}
        try:
            spec = replace(
                FrameSpec(**settings),
                size=None,
                min_pixels=0,
                max_pixels=self.pixels,
                multiple=2,
                area=None,
            )
            with ExitStack() as stack:
                path = view.path
                if is_url(path):
                    path = stack.enter_context(self.videos.fetched(path, view.fingerprint))
                frames: VideoFrames = self._child.call(
                    decode_frames,
                    path,
                    spec,
                    view.bounds,
                    timeout_s=self.timeout_s,
                    about=redacted(view.path),
                    what="decoder",
                )
        except (ValueError, OSError, MemoryError, CrashError, ChildStartError) as error:
            text = redacted(" ".join(str(error).split())) or type(error).__name__
            raise FramesMissingError(f"The frames cannot be decoded: {text}") from error
        chosen = frames.pixels[nearest_to(frames.timestamps, np.array(view.times))]
        parts = range(0, len(chosen), PER_SPRITE)
        return [_jpeg(chosen[start : start + PER_SPRITE]) for start in parts]


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
