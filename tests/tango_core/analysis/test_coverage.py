"""Cosines to the nearest kept token against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tango_core.analysis import coverage
from tango_core.analysis.coverage import nearest_kept
from tango_core.compressors import build_method
from tango_core.types import VisualFeatures


@pytest.mark.parametrize("name", ["full", "uniform", "divprune", "pool_time"])
def test_cosines_are_those_of_brute_force_in_blocks_too(name, monkeypatch):
    monkeypatch.setattr(coverage, "_AT_ONCE", 7)
    tokens = torch.randn(5, 12, 8, generator=torch.Generator().manual_seed(0))
    features = VisualFeatures(tokens, (3, 4), torch.arange(5, dtype=torch.float64))
    options = {} if name == "full" else {"retention": 0.4}
    video = build_method(name, **options).compressor.compress(features)
    whole, kept = (
        each / np.linalg.norm(each, axis=-1, keepdims=True)
        for each in (tokens.numpy(), video.tokens.numpy())
    )
    expected = np.einsum("tld,kd->tlk", whole, kept).max(axis=-1)
    np.testing.assert_allclose(nearest_kept(tokens, video).numpy(), expected, atol=1e-5)
