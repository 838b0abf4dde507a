"""A second decoder: everything from the first packet to the last, with nothing but PyAV.

It knows nothing of the readers that are judged: no index, no seeking, no strictness.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import av
import numpy as np

from tests.fixtures.numbered_videos import number_of

_MOST = 2_000


@dataclass(frozen=True)
class Shown:
    """A frame that came out.

    Attributes:
        time_s: From the start of the file; `None` if the file has no times.
        digest: Of its (h, w, 3) uint8 pixels.
        number: That its barcode carries.
    """

    time_s: float | None
    digest: str
    number: int


def decode_everything(path: str) -> list[Shown]:
    """All frames of a file's first video, in the order in which they come out.

    Raises:
        OSError: If the file cannot be opened, or has no video.
        ValueError: Likewise.
    """
    found: list[Shown] = []
    hidden: set[int | None] = set()
    with av.open(path, metadata_errors="replace") as container:
        stream = container.streams.best("video")
        if stream is None:
            raise ValueError("no video stream")
        stream.codec_context.thread_count = 1
        origin = max(0, container.start_time or 0) / 1e6
        packets = container.demux(stream)
        while len(found) < _MOST:
            try:
                packet = next(packets, None)
            except (av.FFmpegError, OSError):
                packet = None
            try:
                frames = stream.codec_context.decode(packet if packet and packet.size else None)
            except av.FFmpegError:
                frames = []
            if packet is not None and packet.is_discard:
                hidden.add(packet.pts)
            for frame in frames:
                if frame.pts is not None and frame.pts in hidden:  # by the file's edit list
                    continue
                pixels = frame.to_ndarray(format="rgb24")
                if turns := round(frame.rotation / 90) % 4:  # upright, as its display matrix says
                    pixels = np.rot90(pixels, turns)
                tick = None if stream.time_base is None else frame.pts
                time_s = None
                if tick is not None:
                    time_s = max(0.0, float(tick * stream.time_base) - origin)
                digest = digest_of(pixels.tobytes(), pixels.shape)
                found.append(Shown(time_s, digest, number_of(pixels)))
            if packet is None or not packet.size:
                break
    return found


def digest_of(pixels: bytes, shape: tuple[int, ...]) -> str:
    """What tells two pictures apart."""
    return hashlib.sha256(repr(tuple(shape)).encode() + pixels).hexdigest()[:20]
