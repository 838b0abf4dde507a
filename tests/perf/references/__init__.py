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

_COMPRESSORS = (
    *(selecting.full, selecting.random, selecting.uniform, selecting.topk, merging.visionzip),
    *(selecting.vidcom2, merging.fastvid, merging.holitom, selecting.divprune, merging.prunevid),
    *(selecting.evs, merging.flashvid, selecting.vcast, selecting.fewer_frames),
    *(selecting.pool_space, selecting.pool_time, selecting.block),
)
_PRUNERS = (
    *(inside.fastv, inside.dart, inside.pyramiddrop, inside.sparsevlm, inside.framefusion),
    *(inside.fastv_merge, inside.holitom_merge),
)
# (features, retention) -> (K,) ascending flat positions and their (K, D) float32 tokens.
COMPRESSORS: dict[str, Callable[[VisualFeatures, float], tuple[Tensor, Tensor]]] = {
    one.__name__: one for one in _COMPRESSORS
}
# (context, share) -> (S',) ascending positions that stay and their (S', D) states. The share is
# what the layer keeps of the prompt's visual tokens; for FrameFusion the average over the layers.
PRUNERS: dict[str, Callable[[LayerContext, float], tuple[Tensor, Tensor]]] = {
    one.__name__.replace("_", "-"): one for one in _PRUNERS
}
