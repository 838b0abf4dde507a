"""Small videos whose frames carry their numbers, in the containers and codecs that people have."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fixtures.numbered_videos import CLOSED_GOP, write_clip

NUM_FRAMES = 48
RATE = 24

_X264 = {"x264-params": CLOSED_GOP["x264-params"].replace("=24", "=12")}
_X265 = {
    "x265-params": "log-level=error:open-gop=0:bframes=3:keyint=12:min-keyint=12:scenecut=0:"
    "pools=none:frame-threads=1"
}
_MPEG = {"g": "12", "bf": "2", "qscale": "3"}
# name of the file -> codec, its options
VIDEOS: dict[str, tuple[str, dict[str, str]]] = {
    "h264.mp4": ("libx264", _X264),
    "hevc.mp4": ("libx265", _X265),
    "av1.mp4": ("libsvtav1", {"preset": "12", "g": "12"}),
    "h264.mov": ("libx264", _X264),
    "vp9.mkv": ("libvpx-vp9", {"g": "12", "deadline": "good", "cpu-used": "5"}),
    "h264.mkv": ("libx264", _X264),
    "vp8.webm": ("libvpx", {"g": "12", "deadline": "good", "cpu-used": "5"}),
    "mpeg4.avi": ("mpeg4", {**_MPEG, "bf": "0"}),
    "h264.ts": ("libx264", _X264),
    "mpeg2.mpg": ("mpeg2video", _MPEG),
    "flv1.flv": ("flv", {"g": "12", "qscale": "3"}),
    "pictures.gif": ("gif", {}),
}


@cache
def video(name: str) -> bytes:
    """The bytes of one of `VIDEOS`, written once per process."""
    codec, options = VIDEOS[name]
    pixel_format = "rgb8" if codec == "gif" else "yuv420p"
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_clip(
            path, NUM_FRAMES, codec=codec, rate=RATE, options=options, pixel_format=pixel_format
        )
        return path.read_bytes()
