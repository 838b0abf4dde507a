"""Every method but Tango once more, as its publication reads: a yardstick for speed and results.

Plain PyTorch on whole matrices, a loop where the algorithm is one, published defaults, no checks of
the input. Nothing is shared with the package but its types. Where the package chose a rule of its
own (how budgets are rounded, where a merged token stands), its docstring is the text followed here.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from references import inside, merging, selecting
from tango_core.compressors.base import LayerContext
from tango_core.types import VisualFeatures

# (features, retention) -> (K,) ascending flat positions and their (K, D) float32 tokens.
COMPRESSORS: dict[str, Callable[[VisualFeatures, float], tuple[Tensor, Tensor]]] = {
    "full": selecting.full,
    "random": selecting.random,
    "uniform": selecting.uniform,
    "topk": selecting.topk,
    "visionzip": merging.visionzip,
    "vidcom2": selecting.vidcom2,
    "fastvid": merging.fastvid,
    "holitom": merging.holitom,
    "divprune": selecting.divprune,
    "prunevid": merging.prunevid,
    "evs": selecting.evs,
    "flashvid": merging.flashvid,
    "vcast": selecting.vcast,
    "fewer_frames": selecting.fewer_frames,
    "pool_space": selecting.pool_space,
    "pool_time": selecting.pool_time,
    "block": selecting.block,
}

# (context, share) -> (S',) ascending positions that stay and their (S', D) states. The share is
# what the layer keeps of the prompt's visual tokens; for FrameFusion the average over the layers.
PRUNERS: dict[str, Callable[[LayerContext, float], tuple[Tensor, Tensor]]] = {
    "fastv": inside.fastv,
    "dart": inside.dart,
    "pyramiddrop": inside.pyramiddrop,
    "sparsevlm": inside.sparsevlm,
    "framefusion": inside.framefusion,
    "fastv-merge": inside.fastv_merge,
    "holitom-merge": inside.holitom_merge,
}
