"""Select the subtitle lines of a question, by the rules of the harnesses.

A rule chooses lines by the frames that its harness samples for this purpose, which are not always
those that the model is shown. Where a cache holds the clip its file is not opened, so the length of
a frame is worked out from when the last one is shown (`Watched.of`). Where the rate is not known, a
rule takes the place in the video for the frame at this place: less than a frame apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tango_core.types import Prompt, Question, Subtitles

_STAMP = re.compile(r"(\d{1,2}):(\d{1,2}):(\d{1,2})[.,](\d{1,3})")
_VTT_TIME = r"(?:(\d{2,}):)?(\d{2}):(\d{2})\.(\d{3})"
_VTT_TIMES = re.compile(rf"{_VTT_TIME}\s+-->\s+{_VTT_TIME}")
_TAG = re.compile(r"</?[^<>]*>")
_OVERRIDE = re.compile(r"\{[^{}]*\}")
# A file whose frames last longer does not give the rate, and neither does a sample that ends well
# before it.
_LONGEST_FRAME_S = 0.1
# Rates are fractions such as 30000/1001.
_LARGEST_DENOMINATOR = 1001
# Behind the name of a protocol whose questions were put with subtitles, as results record it.
SHOWN = "+subtitles"


@dataclass(frozen=True)
class Watched:
    """What a rule knows of a clip.

    Attributes:
        num_frames: Frames of it that the model was to be shown.
        duration_s: Length in seconds: its frames divided by their average rate.
        rate: Frames per second, if it is known.
        times: When the frames that the model is shown are shown, in seconds, or pairs of them;
            empty where the clip was not opened.
    """

    num_frames: int
    duration_s: float
    rate: float | None = None
    times: tuple[float, ...] = ()

    @classmethod
    def of(cls, num_frames: int, duration_s: float, last_shown_s: float) -> Watched:
        """Work the rate out of a clip of which the last frame was shown: that one ends the clip.

        Args:
            num_frames: As the attribute.
            duration_s: As the attribute.
            last_shown_s: When the last frame that was sampled is shown. Of a clip of a constant
                rate whose last frame it is, the rate is exact; else it is `None`.
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
        """Frames of the clip, where the rate is known."""
        return None if self.rate is None else round(self.duration_s * self.rate)


@dataclass(frozen=True)
class SubtitleRule:
    """How a protocol puts a question with subtitles. Both are functions of a module.

    Attributes:
        choose: (subtitles, what is known of the clip) -> the lines that are shown, as one text.
        render: (question, these lines) -> `Prompt`.
        families: Models that the harness shows them to, by the `wording` of their family; empty for
            all.
        note: A sentence that results of these models show, with subtitles and without.
    """

    choose: Callable[[Subtitles, Watched], str]
    render: Callable[[Question, str], Prompt]
    families: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Cue:
    """Some words on the screen.

    Attributes:
        start_ms: First moment, in milliseconds from the start of the video.
        end_ms: Last moment.
        lines: As they stand in the file, without line breaks at their ends.
    """

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


def cues_of_srt(text: str) -> list[Cue]:
    """Read SubRip text: a line with two times begins a cue, whatever stands around it.

    The lines of a cue are those up to the next times, with its number and empty lines among them.
    WebVTT and ASS, which tools also write into files named `.srt`, are read by their own rules.
    """
    start = text.lstrip("\ufeff \r\n")
    if start.startswith("WEBVTT"):
        return _cues_of_vtt(start)
    if start.startswith("[Script Info]"):
        return _cues_of_ass(start)
    found: list[tuple[int, int, list[str]]] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        stamps = _STAMP.findall(line)
        if len(stamps) == 2:
            found.append((_ms(stamps[0]), _ms(stamps[1]), []))
        elif found:
            found[-1][2].append(line)
    return [Cue(start, end, tuple(lines)) for start, end, lines in found]


def _cues_of_vtt(text: str) -> list[Cue]:
    """Read WebVTT: blocks between empty lines; hours may be left out."""
    found = []
    for block in re.split(r"\n[^\S\n]*\n", text.replace("\r\n", "\n").replace("\r", "\n")):
        lines = block.strip("\n").split("\n")
        for at, line in enumerate(lines):
            times = _VTT_TIMES.match(line.strip())
            if times:
                hours, minutes, seconds, fraction, *end = times.groups()
                start_ms = _ms((hours or "0", minutes, seconds, fraction))
                end_ms = _ms((end[0] or "0", end[1], end[2], end[3]))
                words = tuple(_TAG.sub("", one) for one in lines[at + 1 :])
                found.append(Cue(start_ms, end_ms, words))
                break
    return found


def _cues_of_ass(text: str) -> list[Cue]:
    """Read the dialogue lines of ASS or SSA, whose text is the tenth field."""
    found = []
    for line in text.splitlines():
        fields = line.partition("Dialogue:")[2].split(",", 9)
        stamps = _STAMP.findall(",".join(fields[1:3]))
        if len(fields) == 10 and len(stamps) == 2:
            words = _OVERRIDE.sub("", fields[9]).replace("\\h", " ")
            found.append(Cue(_ms(stamps[0]), _ms(stamps[1]), tuple(re.split(r"\\[Nn]", words))))
    return sorted(found, key=lambda cue: (cue.start_ms, cue.end_ms))


def _ms(stamp: tuple[str, str, str, str]) -> int:
    hours, minutes, seconds, fraction = stamp
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1000 + int(fraction.ljust(3, "0"))
