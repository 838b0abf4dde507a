#!/usr/bin/env bash
# Qwen2-VL's video processor can select one frame too many, with an index behind the end of the video.
#
# Guess:    with `fps=2` the processor of Qwen2-VL and Qwen2.5-VL selects an even number of frames, all inside the video.
# Happens:  for some lengths it selects one more, and the last index equals the number of frames. The step of
#           `torch.arange(0, total, total / num_frames)` is a rounded quotient; where num_frames * step is below total by one
#           rounding, arange has one more value. Powers of two up to 768 are safe, 14, 30, 50, 60, 100 and 120 frames are not
#           (6 to 12 % of all lengths). The consequence depends on how the video is read: frames in memory and decord raise
#           IndexError; PyAV returns 14 frames while the metadata lists 15 indices.
# Versions: transformers 5.23.0, torch 2.13.0, torchvision 0.28.0, av 18.1.0, numpy 2.4.6; Python 3.11
# Source:   transformers/models/qwen2_vl/video_processing_qwen2_vl.py, Qwen2VLVideoProcessor.sample_frames (the same line is
#           in video_llama_3 and molmo2)
# Seen:
#   30 fps, 230 frames, fps=2: 15 indices, last 230
#   frames in memory: IndexError: index 230 is out of bounds for axis 0 with size 230
#   PyAV: 14 frames returned, 15 indices in the metadata
#   lengths below 20000 for which N frames are not N: 14: 1832, 16: 0, 30: 2406, 60: 2404, 64: 0, 120: 2398
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6 av==18.1.0 pillow==12.0.0
env/bin/pip install --quiet --no-deps torchvision==0.28.0
cat > show.py <<'PY'
import sys

import av
import numpy as np
import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # A CPU build of torch beside a CUDA build of torchvision: its compiled operators, which are not used here, do not load.
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in (
        "nms qnms roi_align roi_pool ps_roi_align ps_roi_pool deform_conv2d _roi_align_backward _roi_pool_backward "
        "_ps_roi_align_backward _ps_roi_pool_backward _deform_conv2d_backward"
    ).split():
        library.define(f"{name}(Tensor x) -> Tensor")

from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.video_utils import VideoMetadata, load_video

FRAMES, RATE = 230, 30.0
processor = Qwen2VLVideoProcessor()
indices = processor.sample_frames(VideoMetadata(total_num_frames=FRAMES, fps=RATE), fps=2)
lines = [f"30 fps, {FRAMES} frames, fps=2: {len(indices)} indices, last {int(indices[-1])}"]

video = np.zeros((FRAMES, 56, 56, 3), np.uint8)
metadata = {"total_num_frames": FRAMES, "fps": RATE, "duration": FRAMES / RATE}
try:
    processor(videos=[video], video_metadata=[metadata], do_sample_frames=True, fps=2, return_tensors="pt")
    lines.append("frames in memory: processed")
except IndexError as error:
    lines.append(f"frames in memory: IndexError: {error}")

with av.open("clip.mp4", "w") as container:
    stream = container.add_stream("libx264", rate=30)
    stream.width = stream.height = 64
    stream.pix_fmt = "yuv420p"
    for number in range(FRAMES):
        picture = np.full((64, 64, 3), number, np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
    container.mux(stream.encode())
frames, read = load_video(
    "clip.mp4", backend="pyav", sample_indices_fn=lambda metadata, **_: processor.sample_frames(metadata, fps=2)
)
lines.append(f"PyAV: {len(frames)} frames returned, {len(read.frames_indices)} indices in the metadata")

counts = {
    number: sum(len(torch.arange(0, total, total / number)) != number for total in range(number, 20000))
    for number in (14, 16, 30, 60, 64, 120)
}
listed = ", ".join(f"{number}: {count}" for number, count in counts.items())
lines.append(f"lengths below 20000 for which N frames are not N: {listed}")

print("\n".join(lines))
expected = [
    "30 fps, 230 frames, fps=2: 15 indices, last 230",
    "frames in memory: IndexError: index 230 is out of bounds for axis 0 with size 230",
    "PyAV: 14 frames returned, 15 indices in the metadata",
    "lengths below 20000 for which N frames are not N: 14: 1832, 16: 0, 30: 2406, 60: 2404, 64: 0, 120: 2398",
]
sys.exit(lines != expected)
PY
env/bin/python -W ignore show.py
