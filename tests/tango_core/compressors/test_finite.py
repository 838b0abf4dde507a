"""No clip with NaN or infinity passes."""

from dataclasses import replace

import pytest
import torch

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip


def _compress(name, clip):
    build_method(name, retention=0.5).compressor.compress(clip)


def test_a_signal_is_looked_at_when_a_method_first_needs_it():
    clip = make_clip()
    _compress("uniform", clip)
    clip = replace(clip, saliency=clip.saliency.clone())
    clip.saliency[0, 0] = torch.nan
    _compress("uniform", clip)
    with pytest.raises(ValueError, match="saliency of this clip hold NaN"):
        _compress("topk", clip)


@pytest.mark.parametrize("name", ["tango", "holitom", "vidcom2", "vcast", "flashvid"])
@pytest.mark.parametrize("rows", [slice(None), slice(-1, None)])
def test_finite_tokens_whose_norms_overflow_are_refused(name, rows):
    clip = make_clip(kind="noise")
    clip.tokens[rows] *= 1e25
    with pytest.raises(ValueError, match="norms overflow float32"):
        _compress(name, clip)
