"""Declare operators that torchvision for CUDA does not load beside a torch for CPUs.

Python imports this module at its start where the folder is in `PYTHONPATH`. The torchvision of
the usual index is built for CUDA: its library of operators does not load, and `import torchvision`
fails at the first operator it describes. vLLM's Qwen models only need the size of a resized image
from it.
"""

import torch

_LIBRARY = torch.library.Library("torchvision", "DEF")
_LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
