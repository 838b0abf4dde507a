"""Footers with a checksum: what is damaged is refused before pyarrow parses it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_features import clip, filled

from pipeline.cache.compact import compact_cache
from pipeline.cache.folders import find_caches
from pipeline.cache.footers import MARK, read_footer
from pipeline.cache.stored_features import FeaturesDamagedError

KEY = clip().key


def written(root, *, in_shard):
    """A cache of features, and the file that holds a clip's tokens."""
    cache = filled(root, (0, 1))
    if in_shard:
        (folder,) = find_caches(str(root))
        assert not [problem for _, problem in compact_cache(folder) if problem]
    cache.shards.refresh()
    cache.shards._footers.clear()
    (path,) = Path(cache.storage.root).glob("shard-*" if in_shard else f"{KEY}.parquet")
    return cache, path


def footer_of(data):
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


@pytest.mark.parametrize("in_shard", [False, True])
def test_a_flipped_bit_anywhere_in_a_footer_is_refused(tmp_path, in_shard):
    # Parsed without a checksum, some of them end the process: see tests/chaos/results/simulator.md.
    _, path = written(tmp_path, in_shard=in_shard)
    data = path.read_bytes()
    begins = footer_of(data)
    assert data[begins - 12 : begins - 4] == MARK
    for at in range(begins - 4, len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        with pytest.raises(pa.ArrowException):
            read_footer(pa.BufferReader(bytes(changed)))


@pytest.mark.parametrize("in_shard", [False, True])
def test_a_file_without_a_checksum_is_read_as_it_is(tmp_path, in_shard):
    cache, path = written(tmp_path, in_shard=in_shard)
    right = cache.opened(KEY).tokens()[0]
    data = path.read_bytes()
    begins = footer_of(data)
    path.write_bytes(data[: begins - 12] + data[begins:])
    cache.shards._footers.clear()
    assert cache.opened(KEY).tokens()[0].equal(right)


def test_other_readers_of_parquet_see_no_checksum(tmp_path):
    _, path = written(tmp_path, in_shard=True)
    assert len(pd.read_parquet(path)) == 4  # tokens and signals of two clips
    assert pq.ParquetFile(path).metadata.num_row_groups == 4


def test_a_damaged_footer_costs_its_clips_and_names_the_file(tmp_path):
    cache, path = written(tmp_path, in_shard=True)
    data = bytearray(path.read_bytes())
    data[footer_of(data) + 40] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FeaturesDamagedError, match=f"{path.name} cannot be read: its footer"):
        cache.opened(KEY)
