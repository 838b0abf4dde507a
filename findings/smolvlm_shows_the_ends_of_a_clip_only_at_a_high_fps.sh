#!/usr/bin/env bash
# SmolVLM's video processor leaves out a clip's first and last second, unless a higher `fps` is asked for.
#
# Guess:    `num_frames` bounds the frames, `fps` the rate. A clip of 20 s gives 8 frames at every rate from 1 frame per second on, and
#           the same ones; `skip_secs` (default 1) drops the ends of clips that are long enough, here of all rates or of none.
# Happens:  the ends are dropped while the rest of the clip, in seconds, is longer than num_frames * fps, a count of frames times a
#           rate. Of 20 s and 8 frames, 18 s are left: at 1 and 2 frames per second the ends are dropped, from 3 on they are shown,
#           though all of them select 8 frames. With the 64 frames of the published models at 1 frame per second the ends of clips of 66
#           s are shown, those of 67 s dropped; at 2 frames per second a clip must be over 130 s. So a question about the first second
#           of a clip is answerable or not depending on a setting that changes nothing else.
# Versions: transformers 5.23.0, torch 2.13.0, torchvision 0.28.0, numpy 2.4.6; Python 3.11
# Source:   transformers/models/smolvlm/video_processing_smolvlm.py, sample_frames:
#           `if skip_secs > 0 and (metadata["duration"] - 2 * skip_secs) > (num_frames * fps)`
# Seen (first and last selected frame of how many, 30 frames per second; last possible frame):
#   20 s, num_frames 8, fps 1     30 to 570 of 8 (last: 599)
#   20 s, num_frames 8, fps 2     30 to 570 of 8 (last: 599)
#   20 s, num_frames 8, fps 3     0 to 599 of 8 (last: 599)
#   66 s, num_frames 64, fps 1    0 to 1979 of 64 (last: 1979)
#   67 s, num_frames 64, fps 1    30 to 1980 of 64 (last: 2009)
#   67 s, num_frames 64, fps 2    0 to 2009 of 64 (last: 2009)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6 pillow==12.0.0
env/bin/pip install --quiet --no-deps torchvision==0.28.0
cat > show.py <<'PY'
import sys

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

from transformers import SmolVLMVideoProcessor
from transformers.video_utils import VideoMetadata

processor, lines = SmolVLMVideoProcessor(), []
for seconds, num_frames, fps in ((20, 8, 1), (20, 8, 2), (20, 8, 3), (66, 64, 1), (67, 64, 1), (67, 64, 2)):
    metadata = VideoMetadata(total_num_frames=30 * seconds, fps=30.0, duration=float(seconds))
    chosen = processor.sample_frames(metadata, num_frames=num_frames, fps=fps)
    label = f"{seconds} s, num_frames {num_frames}, fps {fps}"
    lines.append(f"{label:<30}{chosen[0]} to {chosen[-1]} of {len(chosen)} (last: {30 * seconds - 1})")
print("\n".join(lines))
expected = """\
20 s, num_frames 8, fps 1     30 to 570 of 8 (last: 599)
20 s, num_frames 8, fps 2     30 to 570 of 8 (last: 599)
20 s, num_frames 8, fps 3     0 to 599 of 8 (last: 599)
66 s, num_frames 64, fps 1    0 to 1979 of 64 (last: 1979)
67 s, num_frames 64, fps 1    30 to 1980 of 64 (last: 2009)
67 s, num_frames 64, fps 2    0 to 2009 of 64 (last: 2009)"""
sys.exit("\n".join(lines) != expected)
PY
env/bin/python -W ignore show.py
