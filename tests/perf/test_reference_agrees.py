"""The package and the plain transcription are two implementations of one text: they must agree."""

import sys
from pathlib import Path

import pytest
import torch
from synthetic_features import make_clip

from tango_core.compressors.tango import Tango

sys.path.insert(0, str(Path(__file__).parent))
import reference_tango


@pytest.mark.parametrize("retention", [0.08, 0.2, 0.45])
@pytest.mark.parametrize("kind", ["scene", "noise", "static"])
@pytest.mark.parametrize(("num_frames", "grid"), [(1, (6, 6)), (5, (4, 7)), (9, (6, 6))])
@pytest.mark.parametrize("seed", range(3))
def test_both_keep_the_same_tokens(seed, num_frames, grid, kind, retention):
    features = make_clip(num_frames, grid, kind, seed=seed, dim=48)
    tango = Tango(retention)
    ours = tango.compress(features)
    kept, tokens = reference_tango.compress(features, retention, tango.resolved_tau)
    assert ours.indices.tolist() == kept.tolist()
    torch.testing.assert_close(ours.tokens, tokens, rtol=1e-5, atol=1e-5)
