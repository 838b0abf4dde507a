"""Shards: many clips in one file, whatever happens on the way."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from pipeline.cache import folders as cache_folders
from pipeline.cache.directory import INDEX, Shards, TokenCache, read_index
from pipeline.cache.folders import check_entries, compact_cache, find_caches
from pipeline.cache.names import clip_key
from pipeline.cache.rows import CacheError, ClipIdentity, Entry
from pipeline.storage import Storage
from tango_core.types import CompressedVideo

IDENTITY = {"model": {"name": "m"}, "compressor": {"name": "tango"}}


def key_of(number):
    return clip_key(f"stat:{number}", None)


def video_of(number):
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randn(3, 400, generator=generator).bfloat16()
    timestamps = torch.tensor([0.0, 0.5], dtype=torch.float64)
    return CompressedVideo(tokens, torch.tensor([0, 5, 7]), (2, 2, 3), timestamps)


def write(cache, number):
    clip = ClipIdentity(key_of(number), f"video-{number}", None, f"stat:{number}")
    cache.write(clip, Entry(video_of(number), 1.0, 2.0, 3.0))


def fill(root, numbers):
    cache = TokenCache(str(root), IDENTITY, "m-tango")
    cache.prepare()
    for number in numbers:
        write(cache, number)
    return cache


def compact(root):
    (folder,) = find_caches(str(root))
    return list(compact_cache(folder))


def holds(cache, numbers):
    """Whether a cache lists exactly these clips and reads each bit for bit."""
    assert cache.keys() == {key_of(number) for number in numbers}
    for number in numbers:
        read, expected = cache.read(key_of(number)).video, video_of(number)
        assert torch.equal(read.tokens.view(torch.int16), expected.tokens.view(torch.int16))
        assert torch.equal(read.indices, expected.indices)
    return True


def files_of(cache, pattern):
    return sorted(Path(cache.storage.root).glob(pattern))


@pytest.fixture(params=["local", "fsspec"])
def root(tmp_path, request):
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def test_a_compacted_cache_lists_and_reads_as_before(root):
    cache = fill(root, range(6))
    assert compact(root) == [(f"{key}.parquet", None) for key in by_age(cache, range(6))]
    (shard,) = cache.storage.names(".parquet")
    assert shard.startswith("shard-")
    assert holds(cache, range(6))
    assert holds(TokenCache(root, IDENTITY, "m-tango"), range(6))
    assert compact(root) == []


def by_age(cache, numbers):
    """Keys as `compact` takes them; a memory file system keeps no times."""
    keys = [key_of(number) for number in numbers]
    return keys if cache.storage.store is None else sorted(keys)


def test_a_job_that_planned_with_the_files_finds_its_clips_in_the_shard(root):
    cache = fill(root, range(4))
    planned = cache.keys()
    worker = pickle.loads(pickle.dumps(cache))
    worker.read(key_of(0))
    compact(root)
    assert planned == {key_of(number) for number in range(4)}
    assert holds(worker, range(4))
    write(cache, 4)
    write(cache, 5)
    compact(root)  # another shard, which the worker has not seen
    assert torch.equal(worker.read(key_of(5)).video.indices, video_of(5).indices)


def test_shards_are_cut_by_size_and_oldest_first(tmp_path, monkeypatch):
    cache = fill(tmp_path, range(7))
    now = time.time()
    for number in range(7):  # the last is the oldest
        path = Path(cache.storage.path(f"{key_of(number)}.parquet"))
        os.utime(path, (now - number * 86400,) * 2)
    monkeypatch.setattr(cache_folders, "MAX_CLIPS", 3)
    compact(tmp_path)
    (folder,) = find_caches(str(tmp_path))
    first, second = folder.of_kind("shard")
    for shard, numbers in ((first, (4, 5, 6)), (second, (1, 2, 3))):
        keys = [one.key for one in folder.locations if one.shard == shard.name]
        assert keys == sorted(map(key_of, numbers))
    assert [file.name for file in folder.singles] == [f"{key_of(0)}.parquet"]
    oldest, _ = folder.written
    assert now - oldest.timestamp() == pytest.approx(4 * 86400, abs=2)
    assert holds(cache, range(7))


KILLED = """
import os, sys
from pathlib import Path
from pipeline.cache.folders import compact_cache
from pipeline.cache.directory import CacheDirectory
from pipeline.cache.folders import CacheFolder, find_caches
when, root = sys.argv[1:]
die = lambda *_: os.kill(os.getpid(), 9)
if when == "writing":
    read = CacheDirectory.row
    left = iter(range(3))
    CacheDirectory.row = lambda *a, **k: read(*a, **k) if next(left, None) is not None else die()
if when == "placed":
    CacheFolder.remove = die
if when == "removing":
    remove, left = CacheFolder.remove, iter(range(2))
    CacheFolder.remove = lambda *a: remove(*a) if next(left, None) is not None else die()
list(compact_cache(find_caches(root)[0]))
"""


@pytest.mark.parametrize(
    ("when", "shards", "files"), [("writing", 0, 5), ("placed", 1, 5), ("removing", 1, 3)]
)
def test_killed_on_the_way_it_leaves_a_cache_that_reads_whole(tmp_path, when, shards, files):
    cache = fill(tmp_path, range(5))
    done = subprocess.run([sys.executable, "-c", KILLED, when, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert len(files_of(cache, "shard-*.parquet")) == shards
    assert len(files_of(cache, "[0-9a-f]*.parquet")) == files
    assert holds(cache, range(5))
    assert holds(TokenCache(str(tmp_path), IDENTITY, "m-tango"), range(5))
    assert len(compact(tmp_path)) == files
    assert len(files_of(cache, "*.parquet")) == 1
    assert holds(cache, range(5))


def test_two_calls_at_once_lose_nothing(tmp_path):
    cache = fill(tmp_path, range(40))
    threads = [threading.Thread(target=compact, args=(tmp_path,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    reader = TokenCache(str(tmp_path), IDENTITY, "m-tango")
    while any(thread.is_alive() for thread in threads):
        for number in range(40):
            reader.read(key_of(number))
    assert holds(cache, range(40))
    assert files_of(cache, "[0-9a-f]*.parquet") == []


def damage_first(shard):
    """Flip the bits of a byte among the tokens of a shard's first clip."""
    group = pq.ParquetFile(shard).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    (tokens,) = (column for column in columns if column.path_in_schema == "tokens")
    data = bytearray(shard.read_bytes())
    data[tokens.data_page_offset + tokens.total_compressed_size // 2] ^= 0xFF
    shard.write_bytes(data)


def test_a_damaged_clip_in_a_shard_is_named_becomes_a_miss_and_is_made_again(tmp_path):
    cache = fill(tmp_path, range(4))
    compact(tmp_path)
    (shard,) = files_of(cache, "shard-*.parquet")
    damage_first(shard)
    (folder,) = find_caches(str(tmp_path))
    problems = {location.key: problem for location, problem in check_entries(folder) if problem}
    assert list(problems) == [key_of(0)]
    assert re.match(r"is damaged", problems[key_of(0)])
    worker = pickle.loads(pickle.dumps(cache))
    with pytest.raises(CacheError, match=rf"shard-.*parquet, clip {key_of(0)}, (is|cannot)"):
        worker.read(key_of(0))
    worker.discard(key_of(0))
    for one in (worker, cache, TokenCache(str(tmp_path), IDENTITY, "m-tango")):
        assert holds(one, range(1, 4))
        with pytest.raises(FileNotFoundError):
            one.read(key_of(0))
    for number in (0, 4):
        write(cache, number)
    assert holds(worker, range(5))
    compact(tmp_path)
    assert len(files_of(cache, "*.parquet")) == 2
    assert holds(worker, range(5))


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_a_footer_that_is_damaged_after_the_plan_costs_its_clips_and_no_more(tmp_path, byte):
    # In a store plans come from the index, so that a worker is the first to read the footer. That
    # was an OSError: the shard stayed as it was, and its clips failed in every later job.
    cache = fill(tmp_path, range(2))
    compact(tmp_path)
    (shard,) = files_of(cache, "shard-*.parquet")
    planned = TokenCache(str(tmp_path), IDENTITY, "m-tango")
    planned.shards.refresh()
    planned.shards._footers.clear()
    data = shard.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    shard.write_bytes(data[: -8 - length] + byte * length + data[-8:])
    with pytest.raises(CacheError, match=rf"{shard} is damaged "):
        planned.read(key_of(1))
    planned.discard(key_of(1))
    with pytest.raises(FileNotFoundError):
        planned.read(key_of(1))


def test_a_damaged_copy_in_a_shard_does_not_replace_a_good_file(tmp_path):
    cache = fill(tmp_path, range(4))
    compact(tmp_path)
    (shard,) = files_of(cache, "shard-*.parquet")
    damage_first(shard)
    write(cache, 0)
    write(cache, 7)
    compact(tmp_path)
    assert files_of(cache, "[0-9a-f]*.parquet") == []
    assert holds(cache, [*range(4), 7])


def test_a_shard_without_its_end_is_named_and_its_clips_are_misses(tmp_path, caplog):
    cache = fill(tmp_path, range(3))
    compact(tmp_path)
    write(cache, 8)
    (shard,) = files_of(cache, "shard-*.parquet")
    shard.write_bytes(shard.read_bytes()[:-30])
    fresh = TokenCache(str(tmp_path), IDENTITY, "m-tango")
    assert holds(fresh, [8])
    assert f"{shard} is damaged" in caplog.text
    (folder,) = find_caches(str(tmp_path))
    assert list(folder.index.unreadable) == [shard.name]


def test_files_stay_if_their_shard_does_not_read_back(tmp_path, monkeypatch):
    cache = fill(tmp_path, range(3))
    writing = Storage.writing

    @contextmanager
    def faulty(storage, name):
        with writing(storage, name) as file:
            yield file
        damage_first(Path(storage.path(name)))

    monkeypatch.setattr(Storage, "writing", faulty)
    (problem,) = (problem for _, problem in compact(tmp_path) if problem)
    assert "does not read back" in problem
    assert len(files_of(cache, "[0-9a-f]*.parquet")) == 1
    assert holds(cache, range(3))


def test_damaged_files_stay_where_they_are(tmp_path):
    cache = fill(tmp_path, range(4))
    bad = Path(cache.storage.path(f"{key_of(2)}.parquet"))
    bad.write_bytes(bad.read_bytes()[:-9])
    problems = {name: problem for name, problem in compact(tmp_path) if problem}
    assert list(problems) == [bad.name]
    assert "is damaged" in problems[bad.name]
    assert [path.name for path in files_of(cache, "[0-9a-f]*.parquet")] == [bad.name]
    with pytest.raises(CacheError, match="is damaged"):
        cache.read(key_of(2))
    bad.unlink()
    assert holds(cache, [0, 1, 3])


@pytest.fixture
def in_store():
    """A compacted cache of six clips in three shards, in a store; and its root."""
    root = f"memory://{uuid.uuid4().hex}/cache"
    for numbers in ((0, 1), (2, 3), (4, 5)):
        cache = fill(root, numbers)
        compact(root)
    return cache, root


def test_with_an_index_a_plan_asks_no_shard(in_store, monkeypatch):
    cache, _ = in_store
    assert len(read_index(cache.storage)) == 3
    monkeypatch.setattr(Shards, "_footer", lambda self, name: pytest.fail(f"{name} was asked"))
    assert cache.keys() == {key_of(number) for number in range(6)}


def test_a_shard_that_is_not_in_the_index_is_asked(in_store):
    cache, root = in_store
    before = cache.storage.read(INDEX)
    fill(root, (6, 7))
    compact(root)
    cache.storage.write(INDEX, before)
    assert holds(cache, range(8))


@pytest.mark.parametrize("damage", ["half", "empty", "other"])
def test_a_damaged_index_is_no_index(in_store, damage):
    cache, _ = in_store
    data = cache.storage.read(INDEX)
    other = bytes([*data[:-60], data[-60] ^ 1, *data[-59:]])
    damaged = {"half": data[: len(data) // 2], "empty": b"", "other": other}
    cache.storage.write(INDEX, damaged[damage])
    assert cache.keys() == {key_of(number) for number in range(6)}
