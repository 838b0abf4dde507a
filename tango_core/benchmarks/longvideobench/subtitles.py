"""The subtitles of LongVideoBench, which VLMEvalKit writes between the frames that they belong to.

Source: open-compass/VLMEvalKit, `vlmeval/dataset/longvideobench.py` and, for what its wrapper of
InternVL makes of them, `vlmeval/vlm/internvl/utils.py`. That wrapper puts all frames in front and
leaves a mark in the text where each one was, so that the words still say what is spoken when.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.types import Subtitles

# Marks that stand together are deleted eight at a time, those of the first 64 frames.
_MARKED_FRAMES, _TOGETHER = 64, 8
# A shorter cue belongs to the frames within half of this around its middle.
_SHORTEST_S = 1.0
_IMAGE = re.compile(r"Image-(?=[1-9])")

_Cue = tuple[float, float, str]


def packed(text: str, begins_s: float, length_s: float) -> Subtitles:
    """What a question's row and the file of its video say together, in the video's own seconds.

    A cue is `{"timestamp": [start, end], "text"}`, whose end counts only if it has a fraction (else
    it is the length of the video, as there), or `{"start": "h:m:s", "end", "line"}`.

    Args:
        text: Content of the file.
        begins_s: When the video begins on the clock of its subtitles.
        length_s: Of the video.

    Returns:
        JSON: a list of [start, end, words]. Without text if the file is damaged: VLMEvalKit ends
        there, here the question is put without.
    """
    try:
        cues = [_cue(entry, length_s) for entry in json.loads(text)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Subtitles(None)
    moved = [(start - begins_s, end - begins_s, words) for start, end, words in cues]
    return Subtitles(json.dumps(moved))


def between_frames(subtitles: Subtitles, watched: Watched) -> str:
    """The cues in order, with the marks of the frames between them: `<Frame-1>hello`, a line each.

    A frame stands before the first cue whose middle it does not come after. A cue that no frame
    falls into is left out. Eight marks without a cue between them are left out as well, counted
    from the first frame, and so are all of them where no cue is shown.
    """
    cues: list[_Cue] = json.loads(subtitles.text or "[]")
    times = watched.times or _evenly(watched, cues)
    text, shown = "", 0
    for start, end, words in cues:
        middle = (start + end) / 2
        while shown < len(times) and times[shown] <= middle:
            shown += 1
            text += _mark(shown)
        if end - start < _SHORTEST_S:
            start, end = middle - _SHORTEST_S / 2, middle + _SHORTEST_S / 2
        if any(start < time < end for time in times):
            text += f"{words}\n"
    text += _marks(shown + 1, len(times))
    text = text.replace(_marks(1, len(times)), "")
    for first in range(1, _MARKED_FRAMES, _TOGETHER):
        text = text.replace(_marks(first, first + _TOGETHER - 1), "")
    # There the marks say "Image" until here, and the words change with them.
    return _IMAGE.sub("Frame-", text)


def _cue(entry: Any, length_s: float) -> _Cue:
    """Start, end and words of one entry of the file."""
    if "timestamp" in entry:
        start, end = entry["timestamp"]
        return float(start), end if isinstance(end, float) else length_s, str(entry["text"])
    start, end = (_seconds(entry[name]) for name in ("start", "end"))
    return start, end, str(entry["line"])


def _seconds(clock: str) -> float:
    """Hours, minutes and seconds."""
    hours, minutes, seconds = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _mark(number: int) -> str:
    """What stands in the text for a frame, counted from 1."""
    return f"<Frame-{number}>"


def _marks(first: int, last: int) -> str:
    """Those of several frames after each other."""
    return "".join(map(_mark, range(first, last + 1)))


def _evenly(watched: Watched, cues: Sequence[_Cue]) -> Sequence[float]:
    """About when its frames are shown, of a video that was not opened."""
    length_s = watched.duration_s or max((end for _, end, _ in cues), default=0.0)
    step = length_s / (watched.num_frames + 1)
    return [number * step for number in range(1, watched.num_frames + 1)]
