"""Token sets that are computed from stored features: the same bytes as those that are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from stored_features import clip, features, filled, token_cache

from pipeline.cache.derived import compressor_of, derived_for, features_with, materialise
from pipeline.cache.folders import find_caches
from pipeline.cache.names import LARGE_SIGNALS
from pipeline.cache.rows import CacheError
from tango_core import build_method
from tango_core.compressors import METHODS
from tango_core.compressors.base import Compressor
from tango_core.compressors.baselines import Uniform

KEY = clip().key
BEFORE_THE_LLM = sorted(name for name, cls in METHODS.items() if issubclass(cls, Compressor))


def method_of(name):
    options = {} if name in ("full", "block") else {"retention": 0.25}
    return build_method(name, num_layers=8, **options).compressor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BEFORE_THE_LLM)
def test_stored_features_give_the_bytes_of_compress(tmp_path, name, dtype):
    compressor, given = method_of(name), features(dtype=dtype)
    large = compressor.needs & set(LARGE_SIGNALS)
    filled(tmp_path, tokens=dtype).prepared(clip(), given, large, (1.0, 2.0), signals_alone=True)()
    video = compressor.compress(given)
    found = features_with(token_cache(tmp_path, compressor), compressor)(KEY)
    (entry,) = derived_for(compressor, found, [replace(found.features, question=given.question)])
    assert torch.equal(entry.video.tokens, video.tokens)
    assert entry.video.tokens.dtype == dtype
    assert torch.equal(entry.video.indices, video.indices)
    assert torch.equal(entry.video.timestamps, video.timestamps)
    assert (entry.video.grid, entry.video.source) == (video.grid, video.source)
    assert (entry.decode_video_ms, entry.encode_ms) == (1.0, 2.0)


@pytest.mark.parametrize("name", BEFORE_THE_LLM)
def test_a_manifest_says_which_method_fills_its_cache(tmp_path, name):
    compressor = method_of(name)
    found = compressor_of(token_cache(tmp_path, compressor).settings)
    assert found.identity() == compressor.identity()
    given = features()
    assert torch.equal(found.compress(given).tokens, compressor.compress(given).tokens)


@dataclass(frozen=True)
class Own(Uniform):
    """A method from outside that has the name of no shipped one."""


def test_a_method_from_elsewhere_is_not_taken_for_a_shipped_one(tmp_path):
    assert compressor_of(token_cache(tmp_path, Own(0.25)).settings) is None
    edited = {**Uniform(0.25).identity(), "edited_digest": "0" * 12}
    assert compressor_of({"compressor": edited}) is None
    assert compressor_of({}) is None


def test_materialised_token_sets_need_no_features(tmp_path):
    stored, compressor = filled(tmp_path, range(3)), method_of("tango")
    cache = token_cache(tmp_path, compressor)
    reports = []
    (folder,) = (one for one in find_caches(tmp_path) if not one.holds_features)
    materialise(folder.cache, lambda *report: reports.append(report))
    assert sorted(reports) == sorted((clip(number).key, None) for number in range(3))
    for number in range(3):
        stored.discard(clip(number).key)
        read, wanted = cache.read(clip(number).key), compressor.compress(features(number))
        assert torch.equal(read.video.tokens, wanted.tokens)
    filled(tmp_path / "other")
    token_cache(tmp_path / "other", Own(0.25))
    (folder,) = (one for one in find_caches(tmp_path / "other") if not one.holds_features)
    with pytest.raises(CacheError, match="does not come with this version"):
        materialise(folder.cache, lambda *report: None)
