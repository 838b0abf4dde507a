"""Features that require gradients are compressed like any others, and no graph is kept."""

from dataclasses import replace

import pytest
import torch

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Compressor
from tango_core.compressors.contract.inputs import make_clip

NAMES = [name for name, cls in METHODS.items() if issubclass(cls, Compressor)]
SIGNALS = ("tokens", "saliency", "attention", "keys", "frame_embeddings")


@pytest.mark.parametrize("name", NAMES)
def test_features_that_require_gradients_give_the_same_bytes(name):
    compressor = build_method(
        name, **({} if name in ("full", "block") else {"retention": 0.25})
    ).compressor
    clip = make_clip()
    wanted = {field: getattr(clip, field).clone().requires_grad_() for field in SIGNALS}
    plain, other = compressor.compress(clip), compressor.compress(replace(clip, **wanted))
    assert torch.equal(plain.indices, other.indices)
    assert torch.equal(plain.tokens, other.tokens)
    assert not other.tokens.requires_grad
