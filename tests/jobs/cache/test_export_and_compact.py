"""`tango cache export` and `compact`, and the other commands on shards."""

from __future__ import annotations

from pathlib import Path

import pytest
from filled_caches import files_of, fill, key_of, path_of


@pytest.mark.parametrize("form", ["safetensors", "parquet"])
def test_export_skips_bad_clips_and_names_them(tango, tmp_path, damaged, form):
    options = ("--cache", "caches", "--format", form)
    code, out, _ = tango("cache", "export", damaged.name, "out", *options)
    assert code == 1
    assert out.count("skipped: ") == 4
    assert f"{key_of(1)}.parquet: is damaged (checksum differs)" in out
    assert out.splitlines()[-1] == "2 clips written to out, 4 skipped"
    assert (tmp_path / "out" / "manifest.json").read_text() == damaged.manifest
    code, _, err = tango("cache", "export", damaged.name, "out", *options)
    assert code == 2
    assert "out is not empty; name a new directory" in err


def test_compact_names_the_clips_that_it_does_not_move(tango, tmp_path, damaged):
    code, out, _ = tango("cache", "compact", "--cache", "caches", damaged.name)
    assert code == 1
    assert out.count(f"not moved: {damaged.name}/") == 4
    assert out.splitlines()[-1] == f"{damaged.name}: 2 clips moved into shards"
    assert {key_of(4), key_of(5)} < damaged.keys()
    assert " 6 " in tango("cache", "ls", "--cache", "caches")[1]
    assert tango("cache", "verify", "--cache", "caches", "--delete")[0] == 1
    assert damaged.keys() == {key_of(4), key_of(5)}
    code, out, _ = tango("cache", "compact", "--cache", "caches")
    assert (code, out) == (0, f"{damaged.name}: 0 clips moved into shards\n")


def test_verify_and_gc_know_shards(tango, tmp_path):
    cache = fill(tmp_path / "caches", range(4), days_old=40)
    assert tango("cache", "compact", "--cache", "caches")[0] == 0
    (shard,) = Path(cache.storage.root).glob("shard-*.parquet")
    cache.keys()
    cache.discard(key_of(1))
    assert tango("cache", "verify", "--cache", "caches")[1].startswith("3 clips in 1 token cache")
    fill(tmp_path / "caches", range(4, 6))
    sizes = [path_of(cache, number).stat().st_size for number in (4, 5)]
    gc = ("cache", "gc", "--cache", "caches", "--yes")
    shard.write_bytes(shard.read_bytes()[:-9])
    code, out, _ = tango("cache", "verify", "--cache", "caches")
    assert code == 1
    assert f"{cache.name}/{shard.name}: cannot be read" in out
    assert tango(*gc, "--older-than", "30d")[1] == "nothing to remove\n"
    assert "2 file(s)" in tango(*gc, "--max-size", str(sum(sizes)))[1]  # and what it strikes out
    assert cache.keys() == {key_of(4), key_of(5)}
    assert len(files_of(cache)) == 3
    tango("cache", "compact", "--cache", "caches")
    cache.keys()
    cache.discard(key_of(4))
    assert "whole cache" in tango(*gc, "--name", cache.name)[1]
    assert list((tmp_path / "caches").iterdir()) == []
