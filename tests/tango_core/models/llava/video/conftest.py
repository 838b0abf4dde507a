"""A small LLaVA-Video: its parts, its checkpoint, both halves, a clip whole and pruned."""

import numpy as np
import pytest
import torch
from llava_originals import IMAGE_SIZE, build_original, save_original
from llava_video_clip import ALL_SIGNALS, NAME, NUM_FRAMES

from tango_core.compressors import build_method
from tango_core.models import load_encoder, load_language_model
from tango_core.types import ClipSource, CompressedVideo, VideoFrames


@pytest.fixture(scope="session")
def original():
    """The parts, stock modules with random weights."""
    return build_original(head=True)


@pytest.fixture(scope="session")
def directory(original, tmp_path_factory):
    """Their checkpoint directory."""
    return str(save_original(original, tmp_path_factory.mktemp("llava-video")))


@pytest.fixture(scope="session")
def encoder(directory):
    """Its vision half, loaded by us."""
    return load_encoder(NAME, directory)


@pytest.fixture(scope="session")
def model(directory):
    """Answers are token ids, so that every token counts, and none ends the reply."""
    language_model = load_language_model(NAME, directory)
    language_model.engine.eos_ids = frozenset()
    language_model.engine.decode_text = lambda ids: " ".join(map(str, ids))
    return language_model


@pytest.fixture(scope="session")
def clip():
    """Frames of noise, half a second apart, and what is known of their file."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (NUM_FRAMES, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    return VideoFrames(pixels, np.arange(NUM_FRAMES) / 2, source=ClipSource(2.25, 360))


@pytest.fixture(scope="session")
def features(encoder, clip):
    """The clip encoded, with every signal."""
    return encoder.encode(clip, ALL_SIGNALS)


@pytest.fixture(scope="session")
def full(features):
    """The clip with all its tokens."""
    return build_method("full").compressor.compress(features)


@pytest.fixture(scope="session")
def pruned(full):
    """A third of the tokens; of 12 rows some keep none."""
    kept = torch.tensor([0, 2, 3, 10, 11, 13, 18, 19, 20, 30, 34, 35])
    return CompressedVideo(full.tokens[kept], kept, full.grid, full.timestamps, full.source)
