"""The table of the README says how every decoder reads every clip of the atlas."""

import re
from pathlib import Path

import pytest
from video_atlas import CLIPS, DECODERS, row

README = Path(__file__).parents[3] / "tango_core" / "video" / "README.md"
ROWS = re.findall(r"^\| .* \| `\w+` \| .* \|$", README.read_text(), re.MULTILINE)
# Of those that were read wrong before; all clips take a minute, most of it to encode them.
QUICK = {
    *("early.mkv", "h264_closed.ts", "h264_open.mp4", "joined.mpg", "joined.ts", "mpeg4_b.avi"),
    *("raw.h264", "size.ts", "trimmed.mp4", "uneven.mp4", "wrap.mpg", "wrap.ts"),
}


def test_every_clip_has_a_row_and_none_is_wrong_without_a_warning():
    assert len(ROWS) == len(CLIPS) >= 45
    assert not any("wrong" in line for line in ROWS)
    assert {clip.file for clip in CLIPS} >= QUICK


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(at, id=clip.file, marks=[] if clip.file in QUICK else [pytest.mark.slow])
        for at, clip in enumerate(CLIPS)
    ],
)
def test_decoders_read_a_clip_as_the_table_says(tmp_path, number):
    found = row(tmp_path, CLIPS[number]).split(" | ")
    stated = ROWS[number].split(" | ")
    assert found[:2] == stated[:2]
    for decoder, one, other in zip(DECODERS, found[2:], stated[2:], strict=True):
        if one.strip(" |") != "-":  # not installed here
            assert one == other, decoder
