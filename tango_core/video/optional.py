"""Frame readers with the optional decoders decord and torchcodec.

decord is the library of the published pipelines; on some files it returns neighbouring frames
(`PacketIndex.decord_doubt`). torchcodec is the only decoder that loads torch.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import Any

import numpy as np

from tango_core.video import reader
from tango_core.video.index import PacketIndex
from tango_core.video.reader import DecoderUnavailableError, Indices, Picture, ReaderError, Times

_SOURCE_POSITION = re.compile(r"(\[[\d:]+\]\s*)?\S+\.(cc|h):\d+:\s*")
# Module to import, and what to install.
_TORCHCODEC = ("torchcodec.decoders", "'tango-video[torchcodec]' and FFmpeg 4 to 7")
_MODULES = {
    "decord": ("decord", "decord, which has no wheel for every platform"),
    "torchcodec": _TORCHCODEC,
    "torchcodec_cuda": _TORCHCODEC,
}
# The frame interval at 500 frames per second; larger than the rounding error of time stamps.
_TIME_TOLERANCE_S = 2e-3


def _load(library: str) -> Any:
    """The module of a library, with FFmpeg's log silenced.

    Raises:
        DecoderUnavailableError: If the library is not installed or does not load, as torchcodec
            without FFmpeg's libraries.
    """
    module, package = _MODULES[library]
    try:
        loaded = import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        raise DecoderUnavailableError(
            f"decoder {library!r} does not load ({reader.first_line(error)}); pip install "
            f"{package}, or use decoder: auto"
        ) from error
    if library == "decord":
        loaded.logging.set_level(loaded.logging.QUIET)
    return loaded


def version(library: str) -> str:
    """Name and version, e.g. `"decord 0.6.0"`.

    Raises:
        DecoderUnavailableError: If the library is not installed or does not load.
    """
    _load(library)
    return f"{library} {metadata.version(library.removesuffix('_cuda'))}"


class _RandomAccessReader(reader.FrameReader):
    """Common part of both readers: frames by index, one at a time."""

    library: str
    errors: tuple[type[Exception], ...] = (RuntimeError, IndexError)

    def __init__(self, path: str) -> None:
        super().__init__(path, version(self.library))
        self._decoder: Any = None

    def close(self) -> None:
        """Free the decoder."""
        self._decoder = None

    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield the frames at `indices`; see `FrameReader`."""
        for index in map(int, indices):
            try:
                picture = self._picture(index)
            except self.errors as error:
                raise self._failure(f"failed at frame {index}", error) from error
            yield index, picture

    @abstractmethod
    def _picture(self, index: int) -> Picture:
        """The frame at an index."""

    def _failure(self, what: str, error: Exception) -> ReaderError:
        """An error with the library's message, without the position in its C++ source."""
        message = _SOURCE_POSITION.sub("", reader.first_line(error))
        return ReaderError(f"{self.path}: {self.library} {what} ({message})")


class DecordReader(_RandomAccessReader):
    """Reads frames by index with decord.

    An open reader decodes ahead without bound (over 1 GB within seconds on a 720p file), so it must
    be closed as soon as the last frame is decoded.
    """

    library = "decord"

    def __init__(self, path: str, times: Times | None = None):
        """Open `path`.

        Args:
            path: A video file.
            times: Seconds of every frame, if known from the packets; their number must then be
                decord's. Without them decord's own count and times are used.

        Raises:
            ReaderError: If decord cannot open the file, or counts another number than `times`.
            DecoderUnavailableError: If decord is not installed.
        """
        super().__init__(path)
        decord = _load(self.library)
        self.errors = (decord.DECORDError, RuntimeError)
        try:
            file = os.path.abspath(path)
            self._decoder = decord.VideoReader(file, ctx=decord.cpu(0), num_threads=1)
        except self.errors as error:
            raise self._failure("cannot open it", error) from error
        count = len(self._decoder)
        if times is not None and len(times) != count:
            self.close()
            raise ReaderError(f"{path}: decord counts {count} frames, the file has {len(times)}")
        self.times = self._own_times(count) if times is None else times

    def _own_times(self, count: int) -> Times:
        """Frame times of decord, or index / rate if these are invalid (MPEG-2, AVI)."""
        stamps = np.asarray(self._decoder.get_frame_timestamp(range(count)), dtype=np.float64)
        starts = stamps.reshape(-1, 2)[:, 0]
        if not (np.abs(starts) < 1e7).all() or (np.diff(starts) < 0).any():
            return np.arange(count) / float(self._decoder.get_avg_fps() or 25.0)
        return np.maximum(starts, 0.0)

    def _picture(self, index: int) -> Picture:
        picture: Picture = self._decoder[index].asnumpy()
        if picture.ndim != 3 or picture.shape[2] != 3:
            raise ReaderError(
                f"{self.path}: decord does not return RGB frames; use decode.decoder: auto"
            )
        return picture


class TorchcodecReader(_RandomAccessReader):
    """Reads frames by index with torchcodec in exact mode, which scans all packets first.

    `torchcodec_cuda` decodes on the GPU (NVDEC); values of 0 to 255 may differ by a few from the
    CPU's.
    """

    def __init__(self, path: str, index: PacketIndex, library: str):
        self.library = library
        super().__init__(path)
        self._index = index
        try:
            self._decoder = _load(self.library).VideoDecoder(
                os.path.abspath(path),
                stream_index=index.stream,
                num_ffmpeg_threads=1,
                device="cuda" if self.library == "torchcodec_cuda" else "cpu",
                seek_mode="exact",
            )
            count = int(self._decoder.metadata.num_frames)
            self._is_indexed = index.trusted and count == len(index.shown)
            self.times = index.times
            if not self._is_indexed:
                stamps = [self._decoder.get_frame_at(at).pts_seconds for at in range(count)]
                times = np.array(stamps, dtype=np.float64) - index.origin_s
                self.times = np.maximum(times, 0.0)
        except self.errors as error:
            raise self._failure("cannot read it", error) from error
        if (np.diff(self.times) < 0).any():
            raise ReaderError(f"{path}: torchcodec gives its frames in a wrong order")

    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield the frames at `indices`; see `FrameReader`."""
        if len(indices) and indices[0] > 0:
            # Decode the first packet: it contains the encoder's version, by which the decoder works
            # around faults of old encoders (`pyav.IndexedReader`).
            next(super().fetch(np.zeros(1, dtype=np.int64)))
        yield from super().fetch(indices)

    def _picture(self, index: int) -> Picture:
        """The frame at an index, whose time must be that of its packet.

        torchcodec 0.13 seeks to other frames than requested in MPEG transport streams.
        """
        frame = self._decoder.get_frame_at(index)
        if self._is_indexed:
            own_s = float(frame.pts_seconds)
            expected_s = float(self._index.shown[index] * self._index.time_base)
            if abs(own_s - expected_s) > _TIME_TOLERANCE_S:
                raise ReaderError(
                    f"{self.path}: torchcodec gave a frame at {own_s:.3f} s for {expected_s:.3f} s"
                )
        picture: Picture = frame.data.permute(1, 2, 0).contiguous().cpu().numpy()
        return picture
