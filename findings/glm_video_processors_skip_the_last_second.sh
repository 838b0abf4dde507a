#!/usr/bin/env bash
# The video processors of GLM-4.6V and GLM-GA select no frame of a clip's last, incomplete second.
#
# Guess:    a processor that samples two frames per second spreads them over the whole clip; a clip of one second gets two.
# Happens:  sampling stops when the next time reaches the whole seconds of the duration. What follows them is never selected:
#           of 1.9 s GLM-GA sees the first 1.0 s, of 2.9 s GLM-4.6V sees 1.9 s. GLM-GA shows the first frame twice for every
#           clip of up to 1.0 s. The missing frames are made up for by closer ones in the part that is sampled, so the number
#           of frames looks right. Short clips, as temporal questions have them, lose up to half of their length.
# Versions: transformers 5.23.0, torch 2.13.0, torchvision 0.28.0, numpy 2.4.6; Python 3.11
# Source:   transformers/models/{glm46v,glmga}/video_processing_*.py, sample_frames: `if current_second >= max_second: break`
# Seen (clip of D s at 10 frames per second: number of selected indices, time of the last one):
#   D     GLM-4.6V      GLM-GA
#   0.9   2, 0.0 s      2, 0.0 s
#   1.0   6, 0.9 s      2, 0.0 s
#   1.9   12, 1.0 s     4, 1.0 s
#   2.9   18, 1.9 s     6, 2.0 s
#   9.9   60, 8.9 s     20, 9.0 s
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

from transformers.models.glm46v.video_processing_glm46v import Glm46VVideoProcessor
from transformers.models.glmga.video_processing_glmga import GlmgaVideoProcessor
from transformers.video_utils import VideoMetadata

RATE = 10


def selected(processor, frames):
    metadata = VideoMetadata(total_num_frames=frames, fps=float(RATE), duration=frames / RATE)
    indices = processor.sample_frames(metadata)
    return f"{len(indices)}, {indices.max() / RATE:.1f} s"


lines = ["D     GLM-4.6V      GLM-GA"]
for frames in (9, 10, 19, 29, 99):
    first, second = (selected(it(), frames) for it in (Glm46VVideoProcessor, GlmgaVideoProcessor))
    lines.append(f"{frames / RATE:<6}{first:<14}{second}")
print("\n".join(lines))
expected = """\
D     GLM-4.6V      GLM-GA
0.9   2, 0.0 s      2, 0.0 s
1.0   6, 0.9 s      2, 0.0 s
1.9   12, 1.0 s     4, 1.0 s
2.9   18, 1.9 s     6, 2.0 s
9.9   60, 8.9 s     20, 9.0 s"""
sys.exit("\n".join(lines) != expected)
PY
env/bin/python -W ignore show.py
