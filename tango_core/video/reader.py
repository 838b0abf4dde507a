"""Interface of the decoders, directories of images, and access to a file's packets.

MVBench's TVQA clips are directories of images (`00001.jpg`, ...; 3 per second).
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tango_core.errors import InputError
from tango_core.local_files import open_regular, raise_if_not_regular
from tango_core.printable import printable

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

Times = NDArray[np.float64]
Indices = NDArray[np.int64]
Picture = NDArray[np.uint8]


class VideoDecodeError(InputError):
    """A video cannot be decoded; the message is one line that names the file and the reason."""


class DecoderUnavailableError(InputError):
    """The requested decoder is not installed; the message says what to install."""


class ReaderError(VideoDecodeError):
    """One way of reading a file failed; another one may still succeed."""


class FrameReader(ABC):
    """An open video.

    Readers hold native memory: open late, close early, never keep one in a long-lived object.

    Attributes:
        path: The file or folder.
        name: Library and version, e.g. `"pyav 18.1.0"`.
        times: (n,) seconds from the start of the file of every frame in display order, not
            descending.
        damage: Why fetched frames may differ from the original video: packets that could not be
            decoded, pictures with concealed errors. Complete once `fetch` is exhausted.
        problems: Non-fatal problems; complete once `fetch` is exhausted.
    """

    times: Times

    def __init__(self, path: str, name: str):
        self.path = path
        self.name = name
        self.damage: list[str] = []
        self.problems: list[str] = []

    @abstractmethod
    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield (index, (h, w, 3) uint8 RGB upright picture) one at a time.

        Args:
            indices: (m,) positions in `times`, ascending and unique.

        Raises:
            ReaderError: If a frame listed in `times` cannot be decoded.
        """

    def close(self) -> None:  # noqa: B027 - most readers hold nothing between calls
        """Free the native resources; safe to call twice."""


def raise_if_memory(error: Exception) -> None:
    """Raise `MemoryError` for FFmpeg's errors that mean a lack of memory, threads included."""
    import av

    if isinstance(error, MemoryError | av.BlockingIOError):
        raise MemoryError("no memory for the decoder or another of its threads") from error


def first_line(error: Exception) -> str:
    """First line of an error's message, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


@contextmanager
def opened(path: str) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a file and choose its video stream; an error states the reason in one line.

    Raises:
        VideoDecodeError: If there is no such file, it is empty, damaged, not a video, or holds no
            video stream.
    """
    import av

    try:
        status = os.stat(path)
        raise_if_not_regular(status)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise VideoDecodeError(f"{path}: {reason or error}") from error
    if status.st_size == 0:
        raise VideoDecodeError(f"{path}: the file is empty (0 bytes)")
    try:
        container = av.open(os.path.abspath(path), metadata_errors="replace")
    except (av.FFmpegError, OSError) as error:
        raise_if_memory(error)
        raise VideoDecodeError(f"{path}: {_why_unreadable(path, error)}") from error
    with container:
        yield container, _choose_stream(path, container)


def read_packets(
    container: InputContainer, stream: VideoStream, problems: list[str]
) -> Iterator[Packet[VideoStream]]:
    """Yield packets from the current position; a read error ends them and adds a problem.

    Raises:
        VideoDecodeError: If another stream begins inside the file, which PyAV cannot read past.
    """
    import av

    try:
        yield from (packet for packet in container.demux(stream) if packet.size)
    except IndexError as error:
        raise VideoDecodeError(
            f"{container.name}: another stream begins inside it; copy it with ffmpeg -c copy"
        ) from error
    except (av.FFmpegError, OSError) as error:
        raise_if_memory(error)
        problems.append(f"reading stopped early ({error.strerror})")


def _why_unreadable(path: str, error: Exception) -> str:
    """Reason why a file is unreadable: no permission, truncated mp4, or not a video."""
    with open(path, "rb") as file:
        head = file.read(12)
    if head[4:8] in (b"ftyp", b"mdat", b"moov", b"wide", b"free"):
        return "the mp4 index (moov) is missing or damaged; the file is probably truncated"
    reason = getattr(error, "strerror", None) or str(error)
    return f"not a video that FFmpeg can read ({reason})"


def _choose_stream(path: str, container: InputContainer) -> VideoStream:
    """Take FFmpeg's best video stream; a cover picture is not a video."""
    from av.stream import Disposition

    videos = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    if not videos:
        kinds = sorted({str(stream.type) for stream in container.streams}) or ["nothing"]
        raise VideoDecodeError(f"{path}: holds no video stream (found: {', '.join(kinds)})")
    best = container.streams.best("video")
    stream = best if best in videos else videos[0]
    # None despite its type if the header has no codec, or one that is not built in.
    if not stream.codec_context:
        raise VideoDecodeError(f"{path}: FFmpeg has no decoder for the codec of its video stream")
    stream.codec_context.thread_count = 1
    return stream


IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})


def list_images(path: Path) -> list[Path]:
    """List a directory's images in natural order: `frame_2.jpg` before `frame_10.jpg`."""
    images = (
        entry
        for entry in path.iterdir()
        if entry.suffix.lower() in IMAGE_SUFFIXES and not entry.name.startswith(".")
    )
    return sorted(images, key=_natural_key)


def _natural_key(image: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key with ASCII digits as numbers and the rest (also "²") as text."""
    parts = re.split(r"(\d+)", image.name)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p], image.name


class FolderReader(FrameReader):
    """Reads images by position; image i is shown at i / fps seconds, i counted from 0."""

    def __init__(self, path: str, fps: float):
        super().__init__(path, "images")
        self._images = list_images(Path(path))
        if not self._images:
            kinds = ", ".join(sorted(IMAGE_SUFFIXES))
            raise VideoDecodeError(f"{path}: the directory holds no frames ({kinds})")
        self.times = np.arange(len(self._images)) / fps

    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield the images at `indices`; see `FrameReader`."""
        from PIL import Image

        for index in indices:
            image_path = self._images[int(index)]
            try:
                with open_regular(image_path) as file, Image.open(file) as image:
                    yield int(index), np.asarray(image.convert("RGB"))
            except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
                raise VideoDecodeError(
                    f"{printable(str(image_path))}: not a readable image ({first_line(error)})"
                ) from error
