"""Which files decord reads exactly, told from their packets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

# Containers that store a presentation time per frame and find any keyframe by it.
SEEKABLE_CONTAINERS = ("mov", "matroska")
# decord and PyAV give equal bytes for these; on 10-bit video they differ by up to 48 of 255.
DECORD_PIXEL_FORMATS = ("yuv420p", "yuvj420p")


class TimedPacket(Protocol):
    """What is known of a packet."""

    @property
    def pts(self) -> int | None:
        """Presentation time in ticks of the stream."""

    @property
    def is_keyframe(self) -> bool:
        """Whether decoding may start here."""

    @property
    def hidden(self) -> bool:
        """Whether its frame is never shown."""


def decord_doubt(
    container: InputContainer,
    stream: VideoStream,
    packets: Sequence[TimedPacket],
    trusted: bool,
) -> str | None:
    """Say why decord's random access may return wrong frames of an intact file, or `None`.

    Damage inside a stream is no reason here: decord conceals it, and nothing tells.
    """
    codec, pixel_format = stream.codec_context.name, stream.codec_context.pix_fmt
    if codec != "h264":
        return f"codec {codec}"
    if pixel_format not in DECORD_PIXEL_FORMATS:
        return f"pixel format {pixel_format}"
    if not container.format.name.startswith(SEEKABLE_CONTAINERS):
        return f"container {container.format.name}"
    if len(container.streams.video) != 1:
        return f"{len(container.streams.video)} video streams"
    if not trusted:
        return "frame times are missing or repeated"
    if any(packet.hidden for packet in packets):
        return "an edit list hides frames"
    keyframe = None
    for packet in packets:
        assert packet.pts is not None
        if packet.is_keyframe:
            keyframe = packet.pts
        elif keyframe is None or packet.pts < keyframe:
            return "open groups of pictures"
    ticks = np.sort(np.array([packet.pts for packet in packets], dtype=np.int64))
    if ticks[0] * float(stream.time_base or 0) > max(0, container.start_time or 0) / 1e6 + 1e-3:
        return "the video starts late (edit list)"
    if ticks[0] < 0:
        return "negative frame times"
    steps = np.diff(ticks)
    # Matroska rounds to milliseconds, so steps of a constant rate differ by one tick.
    if len(steps) and steps.max() - steps.min() > 1:
        return "variable frame rate"
    return None
