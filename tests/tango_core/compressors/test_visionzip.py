"""VisionZip against its official adapter, and its budgets where a frame has few tokens."""

import numpy as np
import official
import pytest

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip

FILES = ["visionzip_blob8_7.npz", "visionzip_one_7.npz"]
# The adapter's own split at 5 tokens is 4 + 1, which a ratio of 1 / 49 gives.
CASES = [
    (10, "default27_32", 1 / 49),
    (10, "ctx5pct", 0.05),
    (20, "default27_32", 0.05),
    (20, "ctx5pct", 0.05),
]


def _compress(features, **options):
    return build_method("visionzip", **options).compressor.compress(features)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("percent", "split", "ratio"), CASES)
class TestOfficialAdapter:
    def _ours(self, arrays, percent, ratio):
        features = official.features(arrays, attention="attn", keys="key_metric")
        return _compress(features, retention=percent / 100, contextual_ratio=ratio)

    def test_same_positions_and_tokens(self, name, percent, split, ratio):
        arrays = official.load(name)
        case = f"r{percent}_{split}_one_token"
        official.assert_same_tokens(
            self._ours(arrays, percent, ratio),
            arrays[f"{case}/kept_output_order"],
            arrays[f"{case}/tokens_with_newlines"][:-1],
        )

    def test_same_tokens_where_the_adapter_scrambles_rows(self, name, percent, split, ratio):
        arrays = official.load(name)
        theirs = arrays[f"r{percent}_{split}_grid/tokens_with_newlines"]
        theirs = theirs[(theirs != arrays["newline"]).any(axis=1)]
        ours = self._ours(arrays, percent, ratio).tokens.numpy()
        assert ours.shape == theirs.shape
        by_first = [tokens[np.argsort(tokens[:, 0])] for tokens in (ours, theirs)]
        np.testing.assert_allclose(*by_first, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("percent", "kept"), [(10, 20), (15, 30), (20, 40)])
def test_frames_of_196_keep_the_published_numbers(percent, kept):
    features = make_clip(num_frames=2, grid=(14, 14), kind="noise")
    assert _compress(features, retention=percent / 100).num_kept == 2 * kept
