"""Write frames as an H.264 file, and any file completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt

CRF = 18
PRESET = "medium"


def write_once(path: Path, write: Callable[[Path], object]) -> None:
    """Make a file unless it is there; it appears complete or not at all.

    Several processes may do so at once: the first one to finish wins. A link, unlike a rename,
    never replaces a file, so its time of change, which caches go by, stays.

    Args:
        path: Where the file shall be; its directory exists.
        write: Writes the content to the path it is given, a hidden file in the same directory.
    """
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        write(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_mp4(path: Path, frames: npt.NDArray[np.uint8], fps: Fraction) -> None:
    """Encode frames with x264 as yuv420p.

    Equal frames give equal bytes on one machine: one thread, no dates and no versions in the file.

    Args:
        path: The file, whatever its suffix.
        frames: (F, h, w, 3) uint8 RGB, h and w even.
        fps: Frames per second.
    """
    import av

    with av.open(str(path), "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        stream.options = {"crf": str(CRF), "preset": PRESET, "flags": "+bitexact"}
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
