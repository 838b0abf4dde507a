"""The index of a compacted cache in a store: one object stands for the footers of all shards."""

from __future__ import annotations

import uuid

import pytest
import torch

from pipeline.cache.directory import INDEX, Shards, TokenCache, read_index
from pipeline.cache.folders import compact_cache, find_caches
from pipeline.cache.names import digest
from pipeline.cache.rows import ClipIdentity, Entry
from tango_core.types import CompressedVideo


def key_of(number: int) -> str:
    return digest(str(number), 20)


@pytest.fixture
def cache():
    """A compacted cache of five clips in three shards."""
    root = f"memory://{uuid.uuid4().hex}/cache"
    cache = TokenCache(root, {"of": "tests"}, "m-tango")
    cache.prepare()
    for numbers in ((0, 1), (2, 3), (4, 5)):
        for number in numbers:
            write(cache, number)
        compact(root)
    return cache


def write(cache: TokenCache, number: int) -> None:
    video = CompressedVideo(
        torch.full((1, 4), float(number)),
        torch.zeros(1, dtype=torch.int64),
        (1, 1, 1),
        torch.zeros(1),
    )
    identity = ClipIdentity(key_of(number), f"v{number}", None, "f")
    cache.write(identity, Entry(video, 1.0, 1.0, 1.0))


def compact(root: str) -> None:
    for folder in find_caches(root):
        assert not [problem for _, problem in compact_cache(folder) if problem]


def root_of(cache: TokenCache) -> str:
    return cache.storage.location.rpartition("/")[0]


def test_a_plan_asks_no_shard(cache, monkeypatch):
    assert len(read_index(cache.storage)) == 3
    monkeypatch.setattr(Shards, "_footer", lambda self, name: pytest.fail(f"{name} was asked"))
    assert cache.keys() == {key_of(number) for number in range(6)}


def test_a_shard_that_is_not_in_the_index_is_asked(cache):
    before = cache.storage.read(INDEX)
    write(cache, 6)
    write(cache, 7)
    compact(root_of(cache))
    cache.storage.write(INDEX, before)
    assert cache.keys() == {key_of(number) for number in range(8)}
    assert float(cache.read(key_of(7)).video.tokens[0, 0]) == 7


@pytest.mark.parametrize("damage", ["half", "empty", "other"])
def test_a_damaged_index_is_no_index(cache, damage, caplog):
    data = cache.storage.read(INDEX)
    other = bytes([*data[:-60], data[-60] ^ 1, *data[-59:]])
    cache.storage.write(
        INDEX, {"half": data[: len(data) // 2], "empty": b"", "other": other}[damage]
    )
    assert cache.keys() == {key_of(number) for number in range(6)}
