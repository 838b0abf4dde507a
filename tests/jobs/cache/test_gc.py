"""`tango cache gc`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filled_caches import files_of, fill, key_of, path_of

from jobs.units import human_bytes
from pipeline.cache.directory import TokenCache


@pytest.fixture
def caches(tmp_path):
    """An old cache of three clips and a new one of four; the new ones' ages differ, too."""
    old = fill(tmp_path / "caches", range(3), days_old=40, name="evs")
    new = fill(tmp_path / "caches", range(2), days_old=20)
    fill(tmp_path / "caches", range(2, 4))
    return old, new


def test_gc_without_yes_removes_nothing(tango, caches):
    before = [files_of(cache) for cache in caches]
    size = sum(path_of(caches[0], number).stat().st_size for number in range(3))
    size += len(caches[0].manifest)
    for option in ("--older-than", "30d"), ("--name", "*-evs-*"):
        code, out, _ = tango("cache", "gc", "--cache", "caches", *option)
        assert code == 0
        assert f"to remove: {caches[0].name}: 4 file(s), {human_bytes(size)}: whole cache" in out
        assert caches[1].name not in out
        assert f"{human_bytes(size)} would be freed; nothing was removed, --yes does it" in out
    assert [files_of(cache) for cache in caches] == before


def test_gc_removes_caches_that_got_nothing_new(tango, caches):
    assert tango("cache", "gc", "--cache", "caches", "--older-than", "30d", "--yes")[0] == 0
    assert not Path(caches[0].storage.root).exists()
    assert len(caches[1].keys()) == 4


def test_gc_combines_name_and_age(tango, caches):
    arguments = ("cache", "gc", "--cache", "caches", "--older-than", "30d", "--name")
    assert tango(*arguments, "*-tango-*", "--yes")[1] == "nothing to remove\n"
    assert tango(*arguments, "*-evs-*", "--yes")[1].endswith(" freed\n")
    assert [len(cache.keys()) for cache in caches] == [0, 4]


def test_gc_drops_the_oldest_clips_of_all_caches_until_the_rest_fits(tango, caches):
    sizes = [path_of(caches[1], number).stat().st_size for number in range(1, 4)]
    assert tango("cache", "gc", "--cache", "caches", "--max-size", str(sum(sizes)), "--yes")[0] == 0
    assert caches[0].keys() == set()
    kept = caches[1].keys()
    assert len(kept) == 3
    assert {key_of(2), key_of(3)} < kept
    assert "manifest.json" in files_of(caches[0])


def test_gc_removes_what_a_killed_writer_left_and_not_what_a_live_one_writes(tango, tmp_path):
    cache = fill(tmp_path / "caches", range(1))
    script = (
        "import os, sys; from pipeline.storage import Storage\n"
        "with Storage.at(sys.argv[1]).writing('x') as f:\n"
        "    f.write(b'half'); f.flush(); os.kill(os.getpid(), 9)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script, cache.storage.root], check=False)
    empty = path_of(cache, 7)
    empty.touch()
    stale, live = Path(cache.storage.root).glob(".*.tmp")
    for path in (stale, empty):
        os.utime(path, (time.time() - 2 * 3600,) * 2)
    code, out, _ = tango("cache", "gc", "--cache", "caches", "--yes")
    assert code == 0
    assert "2 file(s), 4 B: leftovers of killed writers" in out
    assert not stale.exists()
    assert not empty.exists()
    assert live.exists()
    assert cache.keys() == {key_of(0)}


def test_gc_keeps_files_that_no_cache_wrote(tango, tmp_path, caches):
    root = tmp_path / "caches"
    (Path(caches[0].storage.root) / "notes.txt").write_text("mine")
    (Path(caches[0].storage.root) / "own.parquet").write_text("mine")
    foreign = root / "photos-0123456789ab"
    foreign.mkdir()
    (foreign / "manifest.json").write_text("{}")
    (foreign / f".{'0' * 32}.tmp").write_text("mine")
    doubtful = fill(root, range(1), days_old=90, name="topk")
    doubtful.storage.write("manifest.json", b"{}")
    for path in (*foreign.iterdir(), *root.glob("*/own.parquet")):
        os.utime(path, (0, 0))
    options = ("--older-than", "1h", "--name", "*", "--yes")
    code, out, _ = tango("cache", "gc", "--cache", "caches", *options)
    assert code == 0
    assert files_of(caches[0]) == {"notes.txt", "own.parquet"}
    assert len(list(foreign.iterdir())) == 2
    assert doubtful.keys() == {key_of(0)}
    assert f"skipped: {doubtful.name}: manifest.json holds other settings" in out


def test_gc_needs_times_for_ages_and_none_for_names(tango):
    identity = {"model": {"name": "m"}, "compressor": {"name": "tango"}}
    cache = TokenCache("memory://caches", identity, "m-tango")
    cache.prepare()
    code, _, err = tango("cache", "gc", "--cache", "memory://caches", "--older-than", "1h")
    assert code == 2
    assert "has no modification times" in err
    assert tango("cache", "gc", "--cache", "memory://caches", "--name", "m-*", "--yes")[0] == 0
    assert cache.storage.files() == []
