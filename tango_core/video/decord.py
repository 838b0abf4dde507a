"""Frame reader with decord, the library of the published pipelines; exact only on some files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import numpy as np

from tango_core.video.container import DecoderUnavailableError, ReaderError
from tango_core.video.reader import FrameReader, Indices, Picture, Times, first_line

_SOURCE_POSITION = re.compile(r"(\[[\d:]+\]\s*)?\S+\.(cc|h):\d+:\s*")


def load() -> ModuleType | None:
    """Import decord with FFmpeg's log silenced; `None` if it is not installed or fails to load."""
    try:
        decord = import_module("decord")
    except (ImportError, OSError, RuntimeError):
        return None
    decord.logging.set_level(decord.logging.QUIET)
    return decord


def version() -> str:
    """Name and version, e.g. `"decord 0.6.0"`.

    Raises:
        DecoderUnavailableError: If decord is not installed.
    """
    decord = load()
    if decord is None:
        raise DecoderUnavailableError(
            "decoder 'decord' is not installed (it has no wheel for every platform); "
            "use decoder: auto or pyav, or pip install decord"
        )
    return f"decord {decord.__version__}"


class DecordReader(FrameReader):
    """Random access by decord, one frame at a time.

    An open reader decodes ahead without bound (over 1 GB within seconds on a 720p file), so it must
    be closed as soon as the last frame is out.
    """

    def __init__(self, path: str, times: Times | None = None):
        """Open `path`.

        Args:
            path: A video file.
            times: Seconds of every frame, if known from the packets; their number must then be
                decord's. Without them decord's own count and times are used.

        Raises:
            ReaderError: If decord cannot open the file, or counts other frames than `times` has.
            DecoderUnavailableError: If decord is not installed.
        """
        super().__init__(path, version())
        decord = load()
        assert decord is not None
        self._errors: tuple[type[Exception], ...] = (decord.DECORDError, RuntimeError)
        try:
            self._reader = decord.VideoReader(
                os.path.abspath(path), ctx=decord.cpu(0), num_threads=1
            )
        except self._errors as error:
            raise ReaderError(f"{path}: decord cannot open it ({_message(error)})") from error
        count = len(self._reader)
        if times is not None and len(times) != count:
            self.close()
            raise ReaderError(f"{path}: decord counts {count} frames, the file has {len(times)}")
        self.times = self._own_times(count) if times is None else times

    def _own_times(self, count: int) -> Times:
        """Frame times of decord, or index / rate if these are invalid (MPEG-2, AVI)."""
        stamps = np.asarray(self._reader.get_frame_timestamp(range(count)), dtype=np.float64)
        starts = stamps.reshape(-1, 2)[:, 0]
        if not (np.abs(starts) < 1e7).all() or (np.diff(starts) < 0).any():
            return np.arange(count) / float(self._reader.get_avg_fps() or 25.0)
        return np.maximum(starts, 0.0)

    def close(self) -> None:
        """Stop decoding ahead and free its frames."""
        self._reader = None

    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield the frames at `indices`; see `FrameReader`."""
        for index in indices:
            try:
                picture: Picture = self._reader[int(index)].asnumpy()
            except self._errors as error:
                raise ReaderError(
                    f"{self.path}: decord failed at frame {index} ({_message(error)})"
                ) from error
            if picture.ndim != 3 or picture.shape[2] != 3:
                raise ReaderError(
                    f"{self.path}: decord gives no RGB picture of a video this narrow "
                    f"(shape {picture.shape}); use decode.decoder: auto"
                )
            yield int(index), picture


def _message(error: Exception) -> str:
    """First line of decord's message, without the C++ source position."""
    return _SOURCE_POSITION.sub("", first_line(error))
