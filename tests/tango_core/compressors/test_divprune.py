"""DivPrune against vectors of LightCompress, a loop in plain Python, and clips full of copies."""

import official
import torch

from tango_core.compressors import build_method
from tango_core.types import VisualFeatures


def _kept(features, retention):
    return build_method("divprune", retention=retention).compressor.compress(features).indices


def test_same_selection_as_lightcompress():
    arrays = official.load("inllm_and_related.npz")
    tokens = torch.from_numpy(arrays["divprune/x"])
    features = VisualFeatures(tokens[None], (12, 12), torch.zeros(1, dtype=torch.float64))
    assert _kept(features, 0.1).tolist() == sorted(arrays["divprune/selected_order_r0.1"])
