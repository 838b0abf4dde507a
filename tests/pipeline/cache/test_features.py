"""What the encoder gave, stored and read back: bit for bit, from files, shards and stores."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from stored_features import GRID, MODEL, clip, features, filled

from pipeline.cache.features import open_features
from pipeline.cache.folders import check_entries, compact_cache, find_caches
from pipeline.cache.names import SIGNALS, entry_name, file_of, signals_parts
from pipeline.cache.rows import CacheError, quantise, restore

KEY = clip().key
ALL = ("tokens", *signals_parts(SIGNALS))


def path_of(cache, part="tokens"):
    return Path(cache.storage.path(file_of(entry_name(KEY, part))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_features_come_back_bit_for_bit(tmp_path, dtype):
    cache, written = filled(tmp_path, tokens=dtype), features(dtype=dtype)
    found = cache.read(KEY, ALL, frozenset(SIGNALS))
    read = found.features
    assert read.tokens.dtype == dtype
    for name in ("tokens", "timestamps", *SIGNALS):
        assert torch.equal(getattr(read, name), getattr(written, name))
        assert getattr(read, name).dtype == getattr(written, name).dtype
    assert (read.grid, read.sinks, read.source) == (GRID, (2, 1), written.source)
    assert (found.clip, found.decode_video_ms, found.encode_ms) == (clip(), 1.0, 2.0)


def test_one_listing_says_what_is_there(tmp_path):
    cache = filled(tmp_path, (0, 1))
    keys = {clip(0).key, clip(1).key}
    assert cache.parts() == dict.fromkeys(ALL, keys)
    assert open_features(str(tmp_path), MODEL).name == cache.name
    assert open_features(str(tmp_path), MODEL, "int8").name != cache.name
    assert cache.name.startswith("tiny-4f-features-")


def test_signals_are_added_beside_the_tokens(tmp_path):
    cache, given = filled(tmp_path, ()), features()
    cache.prepared(clip(), given, (), (1.0, 2.0))()
    before = path_of(cache).read_bytes()
    with pytest.raises(CacheError, match="has no saliency"):
        cache.read(KEY, cache.parts(), frozenset({"saliency"}))
    for names in (("saliency",), ("keys", "attention")):
        cache.prepared(clip(), given, names, (1.0, 3.0), signals_alone=True)()
    assert set(cache.parts()) == {"tokens", "saliency", "attention-keys"}
    read = cache.read(KEY, cache.parts(), frozenset({"saliency", "keys"})).features
    assert torch.equal(read.saliency, given.saliency)
    assert torch.equal(read.keys, given.keys)
    assert path_of(cache).read_bytes() == before


def test_large_signals_have_files_of_their_own_which_compaction_leaves(tmp_path):
    cache, given = filled(tmp_path), features()
    names = (*SIGNALS, "tower_tokens")
    cache.prepared(clip(1), features(1), names, (1.0, 2.0))()
    cache.prepared(clip(), given, ["tower_tokens"], (1.0, 2.0), signals_alone=True)()
    assert set(cache.parts()) == {*ALL, "tower_tokens"}
    (folder,) = find_caches(str(tmp_path))
    assert [problem for _, problem in compact_cache(folder) if problem] == []
    left = sorted(path.name for path in tmp_path.rglob("*-tower_tokens.parquet"))
    assert left == sorted(f"{clip(number).key}-tower_tokens.parquet" for number in (0, 1))
    read = cache.read(KEY, cache.parts(), frozenset(names)).features
    assert torch.equal(read.tower_tokens, given.tower_tokens)
    assert torch.equal(read.keys, given.keys)
    assert cache.read(KEY, cache.parts(), frozenset()).features.tower_tokens is None


def spoil(path, value):
    """Change bytes of a file that hold a value."""
    data = path.read_bytes()
    at = data.index(value)
    path.write_bytes(data[:at] + bytes(byte ^ 0xFF for byte in value) + data[at + len(value) :])


def test_damage_in_a_token_is_found_and_the_clip_is_a_miss(tmp_path):
    cache = filled(tmp_path)
    spoil(path_of(cache), features().tokens.flatten(0, 1)[17].numpy().tobytes())
    with pytest.raises(CacheError, match="checksum of token 17 differs"):
        cache.row(KEY)
    with pytest.raises(CacheError, match="checksum of token 17 differs"):
        cache.read(KEY, ALL, frozenset(), remove_damaged=True)
    assert KEY not in cache.parts().get("tokens", ())


def test_damage_in_signals_leaves_the_tokens_alone(tmp_path):
    cache = filled(tmp_path)
    spoil(path_of(cache, ALL[1]), features().keys.numpy().tobytes())
    with pytest.raises(CacheError, match="checksum differs"):
        cache.read(KEY, ALL, frozenset({"saliency"}), remove_damaged=True)
    assert set(cache.parts()) == {"tokens"}
    assert torch.equal(cache.read(KEY, ALL, frozenset()).features.tokens, features().tokens)


@pytest.mark.parametrize("column", ["timestamps", "grid", "sinks", "tokens_digest", "token_crcs"])
def test_another_value_in_any_column_is_damage(tmp_path, column):
    cache = filled(tmp_path)
    table = pq.read_table(path_of(cache))
    value = table[column][0].as_py()
    changed = value[1:] + value[:1]
    index = table.schema.get_field_index(column)
    field = table.schema.field(index)
    table = table.set_column(index, field, pa.array([changed], field.type))
    pq.write_table(table, path_of(cache), compression="none", use_dictionary=False)
    with pytest.raises(CacheError, match="checksum"):
        cache.read(KEY, ALL, frozenset())


@pytest.mark.parametrize("length", [0, 7, 100, -30])
def test_a_file_that_was_cut_short_is_damage_or_a_miss(tmp_path, length):
    cache = filled(tmp_path)
    path_of(cache).write_bytes(path_of(cache).read_bytes()[:length])
    assert (KEY in cache.parts().get("tokens", ())) == (length != 0)
    with pytest.raises((CacheError, FileNotFoundError)):
        cache.read(KEY, ALL, frozenset(), remove_damaged=True)
    assert KEY not in cache.parts().get("tokens", ())


def test_shards_hold_features_and_give_them_back(tmp_path):
    cache = filled(tmp_path, range(5))
    (folder,) = find_caches(tmp_path)
    moved = list(compact_cache(folder))
    assert len(moved) == 10
    assert not any(problem for _, problem in moved)
    assert len(list(Path(cache.storage.root).glob("*.parquet"))) == 1
    again = pickle.loads(pickle.dumps(cache))
    for number in (3, 0):
        key, given = clip(number).key, features(number)
        read = again.read(key, ALL, frozenset({"keys"})).features
        assert torch.equal(read.keys, given.keys)
        assert torch.equal(read.tokens, given.tokens)
    (folder,) = find_caches(tmp_path)
    assert [problem for _, problem in check_entries(folder)] == [None] * 10
    again.discard(clip(3).key)
    assert cache.parts() == {
        "tokens": {clip(n).key for n in (0, 1, 2, 4)},
        ALL[1]: {clip(n).key for n in range(5)},
    }


@pytest.mark.parametrize("in_shard", [False, True])
def test_a_store_is_asked_once_for_an_entry(tmp_path, monkeypatch, in_shard):
    from pipeline.storage.objects import ObjectStore

    cache = filled(f"memory://features-{tmp_path.name}", (0, 1))
    if in_shard:
        (folder,) = find_caches(cache.root)
        assert not [problem for _, problem in compact_cache(folder) if problem]
        cache.read(clip(1).key, ALL, frozenset())  # the shard's footer is known then
    asked = []
    for name in ("read", "read_range"):
        ask = getattr(ObjectStore, name)
        monkeypatch.setattr(
            ObjectStore, name, lambda *args, ask=ask: asked.append(args[1:]) or ask(*args)
        )
    read = cache.read(KEY, ALL, frozenset()).features
    assert torch.equal(read.tokens, features().tokens)
    assert len(asked) == 1 + in_shard, "of a shard that a file was looked for first"


def test_eight_bits_are_close_and_read_back_as_they_were_rounded(tmp_path):
    cache, given = filled(tmp_path, dtype="int8"), features()
    flat = given.tokens.flatten(0, 1)
    read = cache.read(KEY, ALL, frozenset({"saliency"})).features
    rounded = restore(*quantise(flat), "float32")
    assert torch.equal(read.tokens.flatten(0, 1), rounded)
    steps = flat.abs().amax(dim=1, keepdim=True) / 127
    assert ((rounded - flat).abs() <= steps / 2 * 1.001).all()
    assert torch.equal(read.saliency, given.saliency)
    assert path_of(cache).stat().st_size < path_of(filled(tmp_path)).stat().st_size


@pytest.mark.parametrize("in_shard", [False, True])
def test_flipped_bits_in_a_footer_never_give_other_features(tmp_path, in_shard):
    cache, given = filled(tmp_path, (0, 1)), features()
    if in_shard:
        (folder,) = find_caches(str(tmp_path))
        assert not [problem for _, problem in compact_cache(folder) if problem]
    (path,) = Path(cache.storage.root).glob("shard-*" if in_shard else f"{KEY}.parquet")
    data = path.read_bytes()
    outcomes = Counter()
    for at in range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data), 5):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        cache = pickle.loads(pickle.dumps(cache))  # knows nothing of the file
        try:
            assert torch.equal(cache.row(KEY).entry["tokens"], given.tokens)
            outcomes["right"] += 1
        except (CacheError, FileNotFoundError):
            outcomes["refused"] += 1
    assert outcomes["refused"] > 100
