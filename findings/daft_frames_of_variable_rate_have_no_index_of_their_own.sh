#!/usr/bin/env bash
# Daft numbers the frames of a video by time and average rate: with a variable rate numbers repeat and most frames have none.
#
# Guess:    `VideoFile.frames` gives 0, 1, 2, ... as `frame_index` ("0-based index of the frame in the video stream"), and
#           `get_frame_by_idx(i)` returns frame i for every i below `frame_count` of `metadata()`, as decord and torchcodec do.
# Happens:  both compute round(time * average rate). In a clip of 12 frames that come in three bursts, five numbers are given
#           to 12 frames; `get_frame_by_idx(1)` returns the fourth frame, and 8 of 12 numbers raise "out of range". The source
#           `read_video_frames`, whose schema `frames` says it mirrors, counts the same file 0 to 11. At a constant rate all agree.
# Versions: daft 0.7.26, av 18.1.0, numpy 2.4.6, pillow 12.0.0; Python 3.11
# Source:   daft/file/video.py, VideoFile._frames and get_frame_by_idx: `round((frame.pts - start_pts) * time_base * fps)`
# Seen (frame returned for each index from 0, "-" for IndexError):
#   constant: frame_count 12, frames say [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
#   constant: read_video_frames says [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
#   constant: by index 0 1 2 3 4 5 6 7 8 9 10 11
#   variable: frame_count 12, frames say [0, 0, 0, 1, 6, 6, 6, 6, 11, 11, 12, 12]
#   variable: read_video_frames says [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
#   variable: by index 0 3 - - - - 4 - - - - 8
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet daft==0.7.26 av==18.1.0 numpy==2.4.6 pillow==12.0.0
cat > show.py <<'PY'
from fractions import Fraction

import av
import daft
import numpy as np

MILLISECOND = Fraction(1, 1000)


def write(path, times):
    """Write one grey frame per time in milliseconds; frame i has the level 20 * i."""
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width = stream.height = 64
        stream.time_base = stream.codec_context.time_base = MILLISECOND
        stream.options = {"g": "4", "keyint_min": "4", "sc_threshold": "0", "bf": "0"}
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 20 * number, np.uint8), format="rgb24")
            frame.pts, frame.time_base = time, MILLISECOND
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def number_at(video, index):
    try:
        return str(round(np.asarray(video.get_frame_by_idx(index)).mean() / 20))
    except IndexError:
        return "-"


bursts = [start + 40 * step for start in (0, 1120, 2240) for step in range(4)]
for name, times in (("constant", [40 * step for step in range(12)]), ("variable", bursts)):
    write(f"{name}.mp4", times)
    video = daft.VideoFile(f"{name}.mp4")
    indices = [frame["frame_index"] for frame in video.frames()]
    count = video.metadata()["frame_count"]
    print(f"{name}: frame_count {count}, frames say {indices}")
    source = daft.read_video_frames(f"{name}.mp4", image_height=64, image_width=64).to_pydict()
    print(f"{name}: read_video_frames says {source['frame_index']}")
    print(f"{name}: by index", *(number_at(video, index) for index in range(count)))
PY
env/bin/python -W ignore show.py 2> /dev/null > seen.txt
cat seen.txt
cat > expected.txt <<'TXT'
constant: frame_count 12, frames say [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
constant: read_video_frames says [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
constant: by index 0 1 2 3 4 5 6 7 8 9 10 11
variable: frame_count 12, frames say [0, 0, 0, 1, 6, 6, 6, 6, 11, 11, 12, 12]
variable: read_video_frames says [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
variable: by index 0 3 - - - - 4 - - - - 8
TXT
diff expected.txt seen.txt > /dev/null || { echo "daft behaves in another way now"; exit 1; }
