"""Select the subtitle lines of a question, by the rules of the harnesses.

A rule selects lines by the frames that its harness samples for this purpose, which are not always
those that the model is shown. The file of a cached clip is not opened, so the frame rate is derived
from the time of the last frame (`Watched.of`). Where the rate is unknown, a rule uses times instead
of frames, which differ by less than a frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tango_core.types import Prompt, Question, Subtitles

_STAMP = re.compile(r"(\d{1,2}):(\d{1,2}):(\d{1,2})[.,](\d{1,3})")
# Longest frame from which a rate is derived; a sample may also end well before its file.
_LONGEST_FRAME_S = 0.1
# Rates are fractions such as 30000/1001.
_LARGEST_DENOMINATOR = 1001
# Suffix of a protocol's name in results of questions with subtitles.
SHOWN = "+subtitles"


@dataclass(frozen=True)
class Watched:
    """What a rule knows of a clip.

    Attributes:
        num_frames: Number of frames requested for the model.
        duration_s: Length in seconds: the clip's frames divided by their average rate.
        rate: Frames per second, if it is known.
        times: Times in seconds of the frames that the model is shown, or of pairs of frames; empty
            where the clip was not opened.
    """

    num_frames: int
    duration_s: float
    rate: float | None = None
    times: tuple[float, ...] = ()

    @classmethod
    def of(cls, num_frames: int, duration_s: float, last_shown_s: float) -> Watched:
        """Derive the rate of a clip whose last frame was sampled.

        Args:
            num_frames: As the attribute.
            duration_s: As the attribute.
            last_shown_s: Time of the last sampled frame. If it is the last frame of a clip of a
                constant rate, the rate is exact; else it is `None`.
        """
        frame_s = duration_s - last_shown_s
        if not 0 < frame_s <= _LONGEST_FRAME_S:
            return cls(num_frames, duration_s)
        count = duration_s / frame_s
        if abs(count - round(count)) > 0.01:
            return cls(num_frames, duration_s)
        rate = Fraction(round(count) / duration_s).limit_denominator(_LARGEST_DENOMINATOR)
        return cls(num_frames, duration_s, float(rate))

    @property
    def num_available(self) -> int | None:
        """Number of frames of the clip; `None` if the rate is unknown."""
        return None if self.rate is None else round(self.duration_s * self.rate)


@dataclass(frozen=True)
class SubtitleRule:
    """How a protocol renders a question with subtitles; its functions can be pickled.

    Attributes:
        choose: (subtitles, what is known of the clip) -> the selected lines as one string.
        render: (question, these lines) -> `Prompt`.
        families: Model families that the harness shows subtitles to, by their `wording`; empty for
            all.
        note: A sentence that results of these models show, with subtitles and without.
    """

    choose: Callable[[Subtitles, Watched], str]
    render: Callable[[Question, str], Prompt]
    families: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Cue:
    """Text that is on the screen for a time.

    Attributes:
        start_ms: Begin, in milliseconds from the start of the video.
        end_ms: End.
        lines: Lines of the file, without line breaks at their ends.
    """

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


def cues_of_srt(text: str) -> list[Cue]:
    """Read SubRip text: every line with two times begins a cue.

    The lines of a cue are those up to the next times, its number and empty lines included.
    """
    found: list[tuple[int, int, list[str]]] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        stamps = _STAMP.findall(line)
        if len(stamps) == 2:
            found.append((_ms(stamps[0]), _ms(stamps[1]), []))
        elif found:
            found[-1][2].append(line)
    return [Cue(start, end, tuple(lines)) for start, end, lines in found]


def _ms(stamp: tuple[str, str, str, str]) -> int:
    hours, minutes, seconds, fraction = stamp
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1000 + int(fraction.ljust(3, "0"))
