"""Look at one video file or folder of frames: can it be opened, and do its clips lie inside it?

Runs in a child process, because a file may hang or crash whoever opens it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image, UnidentifiedImageError

from tango_core.decoders.extent import LOSS_SLACK_S, LOSS_SLACK_SHARE
from tango_core.decoders.folder import list_images
from tango_core.decoders.probe import read_index
from tango_core.video import FrameSpec, VideoDecodeError, decode_frames

Kind = Literal["missing", "unreadable", "truncated", "bounds", "timeout", "crash"]
Bounds = tuple[float, float]

# The first and the last frame, small: what proves that a file can be decoded at both ends.
_GLANCE = FrameSpec(num_frames=2, size=(16, 16))


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a file.

    Attributes:
        kind: Sort of problem.
        detail: One line.
        clip: The clip it concerns, or `None` for the file.
        harmless: Clips are decoded all the same.
    """

    kind: Kind
    detail: str
    clip: Bounds | None = None
    harmless: bool = False


def look_at(path: str, clips: Sequence[Bounds]) -> list[Problem]:
    """Open a file, decode its first and last frame, and compare clips with its length.

    Args:
        path: A video file or a folder of images.
        clips: (start, end) in seconds of every part that is asked about.

    Returns:
        All problems; none for a good file.
    """
    if not os.path.exists(path):
        is_link = os.path.islink(path)
        target = f"link to {os.readlink(path)}, which does not exist" if is_link else "no such file"
        return [Problem("missing", target)]
    try:
        if os.path.isdir(path):
            return _look_at_folder(path, clips)
        return _look_at_video(path, clips)
    except VideoDecodeError as error:
        return [Problem("unreadable", str(error).removeprefix(f"{path}: "))]
    except OSError as error:
        return [Problem("unreadable", error.strerror or str(error))]


def _look_at_video(path: str, clips: Sequence[Bounds]) -> list[Problem]:
    """Read all packets, then decode at both ends."""
    index = read_index(path)
    problems = []
    announced = index.info.duration_s or 0.0
    if index.trusted and len(index.shown):
        frames_end = max(index.end_s, float(index.times[-1]))
        if announced - frames_end > max(LOSS_SLACK_S, LOSS_SLACK_SHARE * announced):
            problems.append(
                Problem("truncated", f"frames end at {frames_end:.2f} s of {announced:.2f} s")
            )
        announced = max(announced, frames_end)
    if index.problem:
        problems.append(Problem("truncated", index.problem))
    if not problems:
        decode_frames(path, _GLANCE)
    return problems + (_compare(clips, announced) if announced else [])


def _look_at_folder(path: str, clips: Sequence[Bounds]) -> list[Problem]:
    """Open every image, without decoding it."""
    images = list_images(Path(path))
    if not images:
        return [Problem("unreadable", "the folder holds no images")]
    problems = []
    for image_path in images:
        try:
            with Image.open(image_path):
                pass
        except (UnidentifiedImageError, OSError) as error:
            reason = str(error).splitlines()[0].removesuffix(f" {str(image_path)!r}")
            problems.append(Problem("unreadable", f"{image_path.name}: {reason}"))
    return problems + _compare(clips, len(images) / _GLANCE.folder_fps)


def _compare(clips: Sequence[Bounds], length_s: float) -> list[Problem]:
    """Find clips that begin behind the end, which fail, or end there, which are cut short."""
    problems = []
    slack = max(LOSS_SLACK_S, LOSS_SLACK_SHARE * length_s)
    for clip in clips:
        start, end = clip
        if start > length_s:
            detail = f"starts at {start:g} s but the video ends at {length_s:.2f} s"
            problems.append(Problem("bounds", detail, clip))
        elif end > length_s + slack:
            detail = f"ends at {end:g} s but the video at {length_s:.2f} s; it is cut short"
            problems.append(Problem("bounds", detail, clip, harmless=True))
    return problems
