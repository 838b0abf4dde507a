"""Subtitles in files named `.srt` whose text is SubRip, WebVTT or ASS."""

import pytest

from tango_core.benchmarks.protocols.subtitles import Cue, cues_of_srt

SRT = """1
00:00:01,000 --> 00:00:02,500
A dog
runs

2
01:00:03,250 --> 01:00:04,000
It barks
"""
VTT = """\ufeffWEBVTT - made by a tool
Kind: captions

STYLE
::cue { color: white }

NOTE 00:01.000 is no cue

intro
00:01.000 --> 00:02.500 align:start position:0%
<v Ann>A dog
<i>runs</i>

01:00:03.250 --> 01:00:04.000
It barks
"""
ASS = r"""[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname
Style: Default,Arial

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Dialogue: 0,1:00:03.25,1:00:04.00,Default,,0,0,0,,It barks
Comment: 0,0:00:00.00,0:00:09.00,Default,,0,0,0,,not shown
Dialogue: 0,0:00:01.00,0:00:02.50,Default,,0,0,0,,{\i1}A dog{\i0}\Nruns
"""
CUES = [Cue(1000, 2500, ("A dog", "runs")), Cue(3603250, 3604000, ("It barks",))]


def without_padding(cue):
    """SubRip's cues keep the empty line and the number that follow, as in the harnesses."""
    return Cue(cue.start_ms, cue.end_ms, tuple(it for it in cue.lines if it and not it.isdigit()))


@pytest.mark.parametrize("text", [SRT, VTT, ASS], ids=["srt", "vtt", "ass"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_three_formats_give_the_same_cues(text, end):
    assert [without_padding(cue) for cue in cues_of_srt(text.replace("\n", end))] == CUES


@pytest.mark.parametrize("text", ["", "WEBVTT", "[Script Info]\n", "no times at all"])
def test_a_file_without_cues_has_none(text):
    assert cues_of_srt(text) == []
