import os
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.cache.directory import TokenCache
from pipeline.cache.folders import check_entries, find_caches
from pipeline.cache.names import (
    SourceMissingError,
    clip_key,
    source_fingerprint,
)
from pipeline.cache.rows import CacheError, ClipIdentity, Entry
from tango_core.types import CompressedVideo

CLIP = ClipIdentity("k1", "video-1", (1.0, 2.5), "stat:1:2:3")


def entry(dtype=torch.float32, kept=(0, 5, 7)):
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randn(len(kept), 16, generator=generator).to(dtype)
    timestamps = torch.tensor([0.0, 0.5], dtype=torch.float64)
    return Entry(
        CompressedVideo(tokens, torch.tensor(kept, dtype=torch.int64), (2, 2, 3), timestamps),
        1.0,
        2.0,
        3.0,
    )


@pytest.fixture
def cache(tmp_path):
    made = TokenCache(str(tmp_path), {"model": "m", "compressor": {"name": "tango"}}, "m-tango")
    made.prepare()
    return made


def test_a_root_that_cannot_be_written_to_names_the_option(tmp_path):
    root = tmp_path / "file"
    root.touch()
    made = TokenCache(str(root), {"model": "m", "compressor": {"name": "tango"}}, "m-tango")
    named = rf"^--cache {re.escape(str(root))} cannot be written to \(.*\)"
    with pytest.raises(OSError, match=named):
        made.prepare()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tokens_come_back_bit_for_bit(cache, dtype):
    written = entry(dtype)
    cache.write(CLIP, written)
    read = cache.read("k1")
    assert read.video.tokens.dtype == dtype
    assert torch.equal(read.video.tokens, written.video.tokens)
    assert torch.equal(read.video.indices, written.video.indices)
    assert torch.equal(read.video.timestamps, written.video.timestamps)
    assert read.video.grid == (2, 2, 3)
    assert (read.decode_video_ms, read.encode_ms, read.compress_ms) == (1.0, 2.0, 3.0)


def rewritten(cache, **columns):
    """The file of the one clip with other values in some columns."""
    path = f"{cache.storage.root}/k1.parquet"
    table = pq.read_table(path)
    for name, value in columns.items():
        index = table.schema.get_field_index(name)
        kind = table.schema.field(name).type
        table = table.set_column(index, name, pa.array([value], kind))
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"format_version": 2}, "its format is 2, not 1"),
        ({"clip_key": "k2"}, "it holds the clip k2"),
        ({"shape": [4, 16]}, "shape"),
        ({"grid": [1, 2, 3]}, "timestamps must be"),
        ({"grid": [2, 1, 3]}, "indices must be ascending"),
        ({"dtype": "float31"}, "float31"),
        ({"dtype": None}, "string"),
        ({"num_tokens_kept": 2}, "token counts"),
        ({"tokens": None}, "invalid for input of size 0"),
    ],
)
def test_a_row_that_contradicts_itself_is_damage(cache, columns, reason):
    cache.write(CLIP, entry())
    rewritten(cache, **columns)
    with pytest.raises(CacheError, match=rf"k1\.parquet is damaged \(.*{reason}"):
        cache.read("k1")


def test_a_file_of_other_columns_is_damage(cache):
    pq.write_table(pa.table({"checksum": ["a"]}), f"{cache.storage.root}/k1.parquet")
    with pytest.raises(CacheError, match="it has no column 'format_version'"):
        cache.read("k1")


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (b'{"model"', "is damaged"),
        (b"[]", "it holds no settings"),
        (b"\xff\xfe\xfd", "is damaged"),
        (b'{"model":"n"}', "other settings than the directory's name says"),
    ],
)
def test_a_wrong_manifest_is_named(cache, tmp_path, manifest, reason):
    cache.storage.write("manifest.json", manifest)
    with pytest.raises(CacheError, match=reason):
        TokenCache.existing(str(tmp_path), cache.name)
    with pytest.raises(CacheError, match=r"is damaged|other settings"):
        cache.prepare()


def test_what_a_power_failure_leaves_is_no_entry(cache):
    path = Path(cache.storage.root) / "k1.parquet"
    path.touch()
    assert cache.keys() == set()
    cache.write(CLIP, entry())
    assert path.stat().st_size > 0
    assert cache.keys() == {"k1"}


def test_an_entry_copied_from_another_cache_is_refused_by_read_and_by_a_check(tmp_path):
    caches = [TokenCache(str(tmp_path), {"compressor": {"name": n}}, "m") for n in ("a", "b")]
    for cache in caches:
        cache.prepare()
    key = "0123456789abcdef0123"
    caches[0].write(replace(CLIP, key=key), entry())
    caches[1].storage.write(f"{key}.parquet", caches[0].storage.read(f"{key}.parquet"))
    own = caches[0].name.rpartition("-")[2]
    with pytest.raises(CacheError, match=f"belongs to the cache with the hash {own}"):
        caches[1].read(key)
    (folder,) = find_caches(tmp_path, [caches[1].name])
    ((_, problem),) = check_entries(folder)
    assert f"belongs to the cache with the hash {own}" in problem


@pytest.mark.parametrize(
    "changes",
    [
        {"timestamps": [0.0, 0.25]},
        {"video_id": "another"},
        {"clip_end": 3.0},
        {"source_fingerprint": "stat:1:2:4"},
        {"duration_s": 9.0},
        {"grid": [2, 3, 2]},
        {"encode_ms": 5.0},
    ],
)
def test_every_column_is_under_the_checksum(cache, changes):
    cache.write(CLIP, entry())
    rewritten(cache, **changes)
    with pytest.raises(CacheError, match="checksum differs"):
        cache.read("k1")


def test_an_entry_of_release_0_1_is_read_under_its_own_checksum(cache):
    cache.write(CLIP, entry())
    tokens, indices = entry().video.tokens.numpy(), np.array([0, 5, 7], np.int32)
    crc = zlib.crc32(indices.tobytes(), zlib.crc32(tokens.tobytes()))
    rewritten(cache, checksum=f"crc32:{crc:08x}")
    assert torch.equal(cache.read("k1").video.tokens, entry().video.tokens)
    rewritten(cache, indices=[0, 5, 6])
    with pytest.raises(CacheError, match="checksum differs"):
        cache.read("k1")


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"12345")
    return path


def test_content_hash_ignores_place_and_time_and_sees_the_bytes(video, tmp_path):
    copy = tmp_path / "copy.mp4"
    copy.write_bytes(video.read_bytes())
    os.utime(copy, ns=(1, 1))
    same = source_fingerprint(str(video), hash_content=True)
    assert source_fingerprint(str(copy), hash_content=True) == same
    copy.write_bytes(b"12346")
    assert source_fingerprint(str(copy), hash_content=True) != same


@pytest.mark.parametrize("name", ["gone.mp4", "x" * 300, "nul\0byte", "lone\udc80surrogate"])
def test_a_missing_file_or_a_name_that_no_file_can_have_is_named(tmp_path, name):
    with pytest.raises(
        SourceMissingError, match=r"gone\.mp4: No such" if name == "gone.mp4" else None
    ):
        source_fingerprint(f"{tmp_path}/{name}")


def test_two_clips_of_one_file_never_collide():
    keys = {clip_key("f", clip) for clip in (None, (0.0, 1.0), (0.0, 1.5), (0.5, 1.0))}
    assert len(keys) == 4
    assert clip_key("f", (0, 1)) == clip_key("f", (0.0, 1.0))
    assert clip_key("f", None) != clip_key("g", None)


def test_a_file_that_is_not_named_like_the_caches_is_never_removed(cache):
    cache.write(ClipIdentity("0" * 20, "video-1", None, "stat:1"), entry())
    theirs = Path(cache.storage.root, "notes.txt")
    theirs.write_text("mine")
    (folder,) = find_caches(str(Path(cache.storage.root).parent))
    with pytest.raises(ValueError, match=r"notes\.txt is no file of a token cache"):
        folder.remove("notes.txt")
    assert theirs.exists()
    folder.remove(f"{'0' * 20}.parquet")
    assert cache.keys() == set()
