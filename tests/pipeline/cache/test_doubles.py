"""Clips that are in a shard and in files of their own when their cache is compacted."""

from __future__ import annotations

import pyarrow.parquet as pq
from filled_caches import files_of, fill, key_of

from pipeline.cache.compact import compact_cache
from pipeline.cache.folders import find_caches


def compact(root):
    (folder,) = find_caches(str(root))
    return list(compact_cache(folder))


def test_each_shard_is_asked_once_for_all_of_its_clips(tmp_path, monkeypatch):
    numbers = range(40)
    for start in numbers[::5]:
        fill(tmp_path, range(start, start + 5))
        compact(tmp_path)
    cache = fill(tmp_path, numbers)
    read, held = [], pq.read_metadata

    def counted(file):
        read.append(file)
        return held(file)

    monkeypatch.setattr(pq, "read_metadata", counted)
    assert sorted(compact(tmp_path)) == sorted((f"{key_of(n)}.parquet", None) for n in numbers)
    assert sum(name.endswith(".parquet") for name in files_of(cache)) == 8
    assert len(read) <= 8 + 8, "once to list what is in them, once to read them back"
