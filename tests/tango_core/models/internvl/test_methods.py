"""Every method on what this tower gives: the contract, and a prompt that the model answers."""

from functools import partial

import numpy as np
import pytest
from internvl_checkpoints import NUM_LAYERS, SIZE
from qwen_by_hand import ASKED

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.contract import compressor_checks as checks
from tango_core.compressors.options import option_names
from tango_core.types import VideoFrames

PRUNERS = sorted(name for name, cls in METHODS.items() if issubclass(cls, LayerPruner))
COMPRESSORS = sorted(name for name, cls in METHODS.items() if issubclass(cls, Compressor))


@pytest.fixture(scope="module")
def features(encoder):
    """A clip of eight frames, the second half nearly still, with all signals."""
    generator = np.random.default_rng(3)
    pixels = generator.integers(0, 256, (8, SIZE, SIZE, 3), dtype=np.uint8)
    pixels[4:] = pixels[4]
    pixels[4:, :8, :8] = generator.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    return encoder.encode(VideoFrames(pixels, np.arange(8.0)), encoder.spec.provides)


def method_of(name, retention):
    options = {"retention": retention} if "retention" in option_names(METHODS[name]) else {}
    return build_method(name, num_layers=NUM_LAYERS, model="internvl3.5-8b", **options)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_before_the_language_model(endless, features, name):
    make = partial(lambda name, retention: method_of(name, retention).compressor, name)
    for retention in (0.1, 0.5):
        checks.returns_a_valid_video(partial(make, retention), features)
        checks.makes_its_tokens_by_its_plan(partial(make, retention), features)
    method = method_of(name, 0.5)
    assert method.compressor.needs <= endless.spec.provides
    video = method.compressor.compress(features)
    (answer,) = endless.answer(
        video,
        [ASKED],
        pruner=method.pruner,
        positions=method.compressor.positions,
        max_new_tokens=3,
    )
    assert (answer.status, answer.new_tokens) == ("ok", 3)
    assert answer.visual_tokens == video.num_kept


@pytest.mark.parametrize("name", PRUNERS)
def test_inside_the_language_model(endless, features, name):
    layer = {"layer": 1} if "layer" in option_names(METHODS[name]) else {}
    method = build_method(name, num_layers=NUM_LAYERS, retention=0.7, **layer)
    video = method.compressor.compress(features)
    whole, pruned = (
        endless.answer(video, [ASKED], pruner=pruner, max_new_tokens=3)[0]
        for pruner in (None, method.pruner)
    )
    assert (pruned.status, pruned.new_tokens) == ("ok", 3)
    assert pruned.prompt_tokens == whole.prompt_tokens
    assert pruned.clip_text_tokens == whole.clip_text_tokens > 0
