#!/usr/bin/env bash
# Qwen3-VL's video resizing enlarges clips of 3, 5, 7, ... frames that it finds too large for the pixel budget.
#
# Guess:    frames that exceed `size["longest_edge"]` are made smaller, so that the clip's pixels stay below it.
# Happens:  the test counts frames rounded to an even number with Python's round (3 and 5 frames are both 4), the factor
#           counts the real ones. With 3 frames just below the budget the test fails, the factor is above 1, and the frames
#           are enlarged: the padded clip has 26 % more pixels (and tokens) than allowed. With 5 and 9 frames the test counts
#           too few: clips over the budget are left as they are.
# Versions: transformers 5.23.0, torch 2.13.0, torchvision 0.28.0, numpy 2.4.6; Python 3.11
# Source:   transformers/models/qwen3_vl/video_processing_qwen3_vl.py, smart_resize (the same function is in glm46v)
# Seen (frames and their size -> resized to, pixels of the clip padded to pairs of frames, share of the default budget):
#   2 of 320 x 640 -> 320 x 640, 409600 pixels, 0.52 of the budget
#   3 of 320 x 640 -> 352 x 704, 991232 pixels, 1.26 of the budget
#   4 of 320 x 640 -> 288 x 608, 700416 pixels, 0.89 of the budget
#   5 of 288 x 512 -> 288 x 512, 884736 pixels, 1.12 of the budget
#   9 of 224 x 416 -> 224 x 416, 931840 pixels, 1.18 of the budget
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

import numpy as np
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

CLIPS = ((2, 320, 640), (3, 320, 640), (4, 320, 640), (5, 288, 512), (9, 224, 416))
processor = Qwen3VLVideoProcessor(cap_pixels_per_frame=False)
budget = processor.size["longest_edge"]
lines = []
for frames, height, width in CLIPS:
    video = np.zeros((frames, height, width, 3), np.uint8)
    out = processor(videos=[video], do_sample_frames=False, return_tensors="pt")
    pairs, rows, columns = out["video_grid_thw"][0].tolist()
    pixels = pairs * 2 * rows * 16 * columns * 16
    size = f"{frames} of {height} x {width} -> {rows * 16} x {columns * 16}"
    lines.append(f"{size}, {pixels} pixels, {pixels / budget:.2f} of the budget")
print("\n".join(lines))
expected = """\
2 of 320 x 640 -> 320 x 640, 409600 pixels, 0.52 of the budget
3 of 320 x 640 -> 352 x 704, 991232 pixels, 1.26 of the budget
4 of 320 x 640 -> 288 x 608, 700416 pixels, 0.89 of the budget
5 of 288 x 512 -> 288 x 512, 884736 pixels, 1.12 of the budget
9 of 224 x 416 -> 224 x 416, 931840 pixels, 1.18 of the budget"""
sys.exit("\n".join(lines) != expected)
PY
env/bin/python -W ignore show.py
