"""Check one video file or folder of frames: can it be opened, and is it as long as stated?

Runs in a child process, because a file may hang or crash its reader.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image, UnidentifiedImageError

from tango_core.video import FrameSpec, VideoDecodeError, decode, decode_frames
from tango_core.video.index import read_index
from tango_core.video.reader import list_images

Kind = Literal[
    "missing", "unreadable", "truncated", "damaged", "length", "bounds", "timeout", "crash"
]
Bounds = tuple[float, float]

# The first and the last frame, small: enough to see that a file can be decoded at both ends.
_BOTH_ENDS = FrameSpec(num_frames=2, size=(16, 16))

# Annotated lengths are rounded, and copies of a video differ slightly in length. A larger
# difference means another video or only a part of it.
_LENGTH_SLACK_S = 2.0
_LENGTH_SLACK_SHARE = 0.05


@dataclass(frozen=True)
class Problem:
    """A problem of a file.

    Attributes:
        kind: Kind of problem; see `Finding`.
        detail: One-line description.
        clip: The affected clip; `None` for the whole file.
        severity: `"error"`: clips cannot be decoded; `"warning"`: clips can be decoded but probably
            show another video; `"note"`: clips can be decoded.
    """

    kind: Kind
    detail: str
    clip: Bounds | None = None
    severity: Literal["error", "warning", "note"] = "error"


def check_file(
    path: str, clips: Sequence[Bounds], lengths_s: Sequence[float] = ()
) -> list[Problem]:
    """Open a file, decode its first and last frame, and compare its length with the annotations.

    Args:
        path: A video file or a folder of images.
        clips: (start, end) in seconds of every clip with questions.
        lengths_s: Annotated lengths in seconds; ignored for a folder, whose length depends on an
            unknown frame rate.

    Returns:
        All problems; empty for an intact file.
    """
    if not os.path.exists(path):
        is_link = os.path.islink(path)
        target = f"link to {os.readlink(path)}, which does not exist" if is_link else "no such file"
        return [Problem("missing", target)]
    try:
        if os.path.isdir(path):
            return _check_folder(path, clips)
        return _check_video(path, clips, lengths_s)
    except VideoDecodeError as error:
        return [Problem("unreadable", str(error).removeprefix(f"{path}: "))]
    except OSError as error:
        return [Problem("unreadable", error.strerror or str(error))]


def _check_video(path: str, clips: Sequence[Bounds], lengths_s: Sequence[float]) -> list[Problem]:
    """Read all packets, then decode the first and the last frame."""
    index = read_index(path)
    problems = []
    announced = index.duration_s or 0.0
    if index.trusted and len(index.shown):
        frames_end = max(index.end_s, float(index.times[-1]))
        if announced - frames_end > max(decode.LOSS_SLACK_S, decode.LOSS_SLACK_SHARE * announced):
            problems.append(
                Problem("truncated", f"frames end at {frames_end:.2f} s of {announced:.2f} s")
            )
        announced = max(announced, frames_end)
    if index.problem:
        problems.append(Problem("truncated", index.problem))
    if not problems:
        damage = decode_frames(path, _BOTH_ENDS).damage
        problems += [Problem("damaged", reason) for reason in damage]
    if not announced:
        return problems
    return problems + _compare_lengths(lengths_s, announced) + _compare(clips, announced)


def _check_folder(path: str, clips: Sequence[Bounds]) -> list[Problem]:
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
    return problems + _compare(clips, len(images) / _BOTH_ENDS.folder_fps)


def _compare_lengths(stated_s: Sequence[float], length_s: float) -> list[Problem]:
    """Report an intact file that is clearly shorter or longer than annotated."""
    far = [
        stated
        for stated in stated_s
        if abs(length_s - stated) > max(_LENGTH_SLACK_S, _LENGTH_SLACK_SHARE * stated)
    ]
    if not far:
        return []
    # MLVU's rows about one file have lengths up to 0.02 s apart; report only one of them.
    stated = max(far, key=lambda stated: abs(length_s - stated))
    detail = f"lasts {length_s:.2f} s but should last {stated:.2f} s; is it the right video?"
    return [Problem("length", detail, severity="warning")]


def _compare(clips: Sequence[Bounds], length_s: float) -> list[Problem]:
    """Report clips that begin after the file's end (they fail) or end after it (cut short)."""
    problems = []
    slack = max(decode.LOSS_SLACK_S, decode.LOSS_SLACK_SHARE * length_s)
    for clip in clips:
        start, end = clip
        if start > length_s:
            detail = f"starts at {start:g} s but the video ends at {length_s:.2f} s"
            problems.append(Problem("bounds", detail, clip))
        elif end > length_s + slack:
            detail = f"ends at {end:g} s but the video at {length_s:.2f} s; it is cut short"
            problems.append(Problem("bounds", detail, clip, severity="note"))
    return problems
