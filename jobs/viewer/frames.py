"""Frames of a clip as small pictures, decoded on request.

As in the pipeline, a child process with a time and a memory limit decodes only the frames that were
passed to the model. The pictures of the latest clips are cached in memory.
"""

from __future__ import annotations

import io
import json
import threading
from contextlib import ExitStack
from dataclasses import fields
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from pipeline.redaction import redacted
from pipeline.runtime.child import Child, ChildStartError, CrashError
from pipeline.storage.copies import VideoCache
from pipeline.storage.urls import is_url
from tango_core.errors import InputError
from tango_core.types import VideoFrames
from tango_core.video import FrameSpec, decode_frames

PER_SPRITE = 8
"""Number of frames per picture, stacked vertically, so that a clip needs few requests."""

_QUALITY = 82
_MEMORY_GIB = 4.0
_TIMEOUT_S = 120.0
_VIDEOS_GIB = 50
# Clips whose pictures are cached.
_NUM_CACHED = 16


class NotShownError(InputError):
    """Frames or tokens that cannot be shown; the message has the reason and the next step."""


class View(NamedTuple):
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


class FrameDecoder:
    """Decodes frames to pictures and caches those of the latest clips.

    Args:
        pixels: Area of a frame in pixels, with the video's aspect ratio; 0 decodes no frames.
    """

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels
        self._videos = VideoCache("~/.cache/tango-video", _VIDEOS_GIB)
        self._child = Child(memory_gib=_MEMORY_GIB)
        self._lock = threading.Lock()
        self._cached = lru_cache(_NUM_CACHED)(self._made)

    def sprites(self, view: View) -> list[bytes]:
        """JPEG pictures of `PER_SPRITE` frames each, one frame per time.

        Raises:
            NotShownError: If the frames cannot be decoded; the message is one sentence.
        """
        with self._lock:  # one clip is decoded at a time
            return self._cached(view)

    def frames(self, view: View) -> npt.NDArray[np.uint8]:
        """(T, h, w, 3) the model's frames at a small size, one per time.

        Raises:
            NotShownError: If the frames cannot be decoded; the message is one sentence.
        """
        if not self.pixels:
            raise NotShownError("This export was made without frames (--pixels 0).")
        if not view.sampling:
            raise NotShownError("The token cache has no record of its frame sampling.")
        known, settings = {one.name for one in fields(FrameSpec)}, json.loads(view.sampling)
        settings |= {"size": None, "min_pixels": 0, "max_pixels": self.pixels, "multiple": 2}
        settings["area"] = None
        try:
            spec = FrameSpec(**{name: settings[name] for name in settings if name in known})
            with ExitStack() as stack:
                path = view.path
                if is_url(path):
                    path = stack.enter_context(self._videos.fetched(path, view.fingerprint))
                frames: VideoFrames = self._child.call(
                    decode_frames,
                    path,
                    spec,
                    view.bounds,
                    timeout_s=_TIMEOUT_S,
                    about=redacted(view.path),
                    what="decoder",
                )
        except (ValueError, OSError, MemoryError, CrashError, ChildStartError) as error:
            text = redacted(" ".join(str(error).split())) or type(error).__name__
            raise NotShownError(f"The frames cannot be decoded: {text}") from error
        return frames.pixels[nearest_to(frames.timestamps, np.array(view.times))]

    def close(self) -> None:
        """End the child process."""
        self._child.close()

    def _made(self, view: View) -> list[bytes]:
        frames = self.frames(view)
        parts = range(0, len(frames), PER_SPRITE)
        return [jpeg(np.concatenate(frames[at : at + PER_SPRITE]), _QUALITY) for at in parts]


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


def jpeg(pixels: npt.NDArray[np.uint8], quality: int) -> bytes:
    """Encode (h, w, 3) pixels."""
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=quality, optimize=True)
    return data.getvalue()
