"""Frame reader with torchcodec in exact mode; optional, and the only decoder that loads torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import Any

import numpy as np

from tango_core.video.container import DecoderUnavailableError, ReaderError
from tango_core.video.index import PacketIndex
from tango_core.video.reader import FrameReader, Indices, Picture, first_line

# Below the distance of frames at 500 per second, above the rounding of time stamps.
_TIME_TOLERANCE_S = 2e-3


def _decoder_class() -> Any:
    """Import torchcodec's `VideoDecoder`, which raises RuntimeError without FFmpeg's libraries."""
    try:
        return import_module("torchcodec.decoders").VideoDecoder
    except (ImportError, OSError, RuntimeError) as error:
        raise DecoderUnavailableError(
            f"decoder 'torchcodec' does not load ({first_line(error)}); "
            "pip install 'tango-video[torchcodec]' and FFmpeg 4 to 7, or use decoder: auto"
        ) from error


def version() -> str:
    """Name and version, e.g. `"torchcodec 0.13.0"`.

    Raises:
        DecoderUnavailableError: If torchcodec is not installed or does not load.
    """
    _decoder_class()
    return f"torchcodec {metadata.version('torchcodec')}"


class TorchcodecReader(FrameReader):
    """Random access by torchcodec, which scans all packets first and is exact to the frame."""

    def __init__(self, path: str, index: PacketIndex):
        super().__init__(path, version())
        self._index = index
        try:
            self._decoder = _decoder_class()(
                os.path.abspath(path),
                stream_index=index.stream,
                num_ffmpeg_threads=1,
                seek_mode="exact",
            )
            count = int(self._decoder.metadata.num_frames)
            self._is_indexed = index.trusted and count == len(index.shown)
            if self._is_indexed:
                self.times = index.times
            else:
                stamps = [self._decoder.get_frame_at(at).pts_seconds for at in range(count)]
                times = np.array(stamps, dtype=np.float64) - index.origin_s
                self.times = np.maximum(times, 0.0)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ReaderError(f"{path}: torchcodec cannot read it ({first_line(error)})") from error
        if (np.diff(self.times) < 0).any():
            raise ReaderError(f"{path}: torchcodec gives its frames in a wrong order")

    def close(self) -> None:
        """Free the decoder."""
        self._decoder = None

    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield the frames at `indices`; see `FrameReader`."""
        if len(indices) and indices[0] > 0:
            # The first packet contains the encoder's version; see `pyav.IndexedReader`.
            next(self.fetch(np.zeros(1, dtype=np.int64)))
        for index in indices:
            try:
                frame = self._decoder.get_frame_at(int(index))
            except (RuntimeError, IndexError) as error:
                raise ReaderError(
                    f"{self.path}: torchcodec failed at frame {index} ({first_line(error)})"
                ) from error
            self._raise_if_other_frame(int(index), float(frame.pts_seconds))
            yield int(index), frame.data.permute(1, 2, 0).contiguous().numpy()

    def _raise_if_other_frame(self, index: int, pts_s: float) -> None:
        """Compare the time of a returned frame with that of its packet.

        torchcodec 0.13 seeks to other frames than asked for in MPEG transport streams.
        """
        if not self._is_indexed:
            return
        expected_s = float(self._index.shown[index] * self._index.time_base)
        if abs(pts_s - expected_s) > _TIME_TOLERANCE_S:
            raise ReaderError(
                f"{self.path}: torchcodec returned the frame at {pts_s:.3f} s for the one at "
                f"{expected_s:.3f} s"
            )
