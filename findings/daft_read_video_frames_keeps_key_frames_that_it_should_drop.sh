#!/usr/bin/env bash
# Daft's read_video_frames(is_key_frame=False) returns the key frames too, and with True it renumbers the key frames from 0.
#
# Guess:    "If True, only include key frames; if False, only non-key frames", with `frame_index` the frame's index in the video.
# Happens:  False is treated as None: every frame is returned. True returns key frames with indices 0, 1, 2, so rows of the two
#           calls cannot be joined by index. The expression `video_frames`, documented with the same schema and arguments, drops
#           the key frames for False and keeps their indices 0, 4, 8 for True.
# Versions: daft 0.7.26, av 18.1.0, numpy 2.4.6, pillow 12.0.0; Python 3.11
# Source:   daft/io/av/_read_video_frames.py, _list_frames: `if self.is_key_frame:` is the only use of the argument, and
#           `frame_index` counts decoded frames; daft/file/video.py, VideoFile._frames, has the missing branch
# Seen (12 frames at a constant rate, a key frame every four):
#   read_video_frames True [0, 1, 2]
#   read_video_frames False [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
#   video_frames True [0, 4, 8]
#   video_frames False [1, 2, 3, 5, 6, 7, 9, 10, 11]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet daft==0.7.26 av==18.1.0 numpy==2.4.6 pillow==12.0.0
cat > show.py <<'PY'
import av
import daft
import numpy as np
from daft.functions import video_file, video_frames

with av.open("clip.mp4", "w") as container:
    stream = container.add_stream("libx264", rate=25)
    stream.width = stream.height = 64
    stream.options = {"g": "4", "keyint_min": "4", "sc_threshold": "0", "bf": "0"}
    for number in range(12):
        picture = np.full((64, 64, 3), 20 * number, np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
    container.mux(stream.encode())

for wanted in (True, False):
    rows = daft.read_video_frames("clip.mp4", image_height=64, image_width=64, is_key_frame=wanted).to_pydict()
    print("read_video_frames", wanted, rows["frame_index"])
for wanted in (True, False):
    frames = video_frames(video_file(daft.col("path")), is_key_frame=wanted)
    rows = daft.from_pydict({"path": ["clip.mp4"]}).select(frames.alias("frames")).to_pydict()["frames"][0]
    print("video_frames", wanted, [frame["frame_index"] for frame in rows])
PY
env/bin/python -W ignore show.py 2> /dev/null > seen.txt
cat seen.txt
cat > expected.txt <<'TXT'
read_video_frames True [0, 1, 2]
read_video_frames False [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
video_frames True [0, 4, 8]
video_frames False [1, 2, 3, 5, 6, 7, 9, 10, 11]
TXT
diff expected.txt seen.txt > /dev/null || { echo "daft behaves in another way now"; exit 1; }
