"""The commands `tango cache ...` on token sets, features and shards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filled_caches import files_of, fill, key_of, path_of
from safetensors.torch import load_file
from stored_features import clip, features, filled, token_cache

from pipeline.storage import Storage
from tango_core import build_method


@pytest.fixture
def damaged(tmp_path):
    """A cache of six clips of which four are bad, each for another reason."""
    cache = fill(tmp_path / "caches", range(6))
    paths = [path_of(cache, number) for number in range(6)]
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    middle = bytearray(paths[1].read_bytes())
    middle[len(middle) // 3] ^= 0xFF
    paths[1].write_bytes(middle)
    shutil.copy(paths[4], paths[2])
    table = pq.read_table(paths[3])
    at = table.schema.get_field_index("format_version")
    pq.write_table(table.set_column(at, "format_version", pa.array([7], pa.int32())), paths[3])
    return cache


def test_ls_says_what_each_cache_holds(tango, tmp_path):
    first = fill(tmp_path / "caches", range(2), alpha=1.5)
    second = fill(tmp_path / "caches", range(20), days_old=400, alpha=2.0)
    broken = fill(tmp_path / "caches", range(1), name="evs")
    broken.storage.write("manifest.json", b"{")
    stored = filled(tmp_path / "caches", range(3))
    for root in ("caches", f"file://{tmp_path}/caches"):
        code, out, _ = tango("cache", "ls", "--cache", root)
        assert code == 0
        lines = {line.split()[0]: line for line in out.splitlines() if line}
        assert {first.name, second.name, broken.name, stored.name} <= lines.keys()
        assert " tiny 8f  tango r=0.25 " in lines[first.name]
        assert lines[first.name].endswith("compressor.alpha=1.5")
        assert " 20 " in lines[second.name]
        written = time.localtime(path_of(second, 0).stat().st_mtime)
        assert time.strftime("%Y-", written) in lines[second.name]
        assert "manifest.json is damaged" in lines[broken.name]
        assert "features" in lines[stored.name].split()
        assert "with attention, frame_embeddings, keys, saliency" in lines[stored.name]
        assert "4 token cache(s), 26 clips" in out


def test_ls_names_what_tells_caches_of_one_readable_name_apart(tango, tmp_path):
    same = {"alpha": 1.5, "base_space": 1000.0, "base_time": 10000.0, "context_ratio": 0.4}
    settings = [{"sinks": "zero"}, {"sinks": "x" * 50}, {"sinks": None, "static_tau": 0.7}]
    caches = [fill(tmp_path / "caches", range(1), **same, **own) for own in settings]
    other = fill(tmp_path / "caches", range(1), name="evs", **same)
    _, out, _ = tango("cache", "ls", "--cache", "caches")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    notes = [lines[cache.name].partition("compressor.")[2] for cache in caches]
    assert notes == [
        "sinks=zero compressor.static_tau=None",
        f"sinks={'x' * 12}… compressor.static_tau=None",
        "sinks=None compressor.static_tau=0.7",
    ]
    assert "compressor." not in lines[other.name]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [("ls", 0, "1 clips"), ("verify", 1, "1 clips in 2 token")],
)
def test_a_cache_that_is_closed_to_the_user_hides_no_other_one(
    tango, tmp_path, monkeypatch, command, code, said
):
    fill(tmp_path / "caches", range(1), alpha=1.5)
    closed = fill(tmp_path / "caches", range(1), alpha=2.0)
    files = Storage.files

    def refused(self):
        if self.root.endswith(closed.name):
            raise PermissionError(13, "Permission denied", self.root)
        return files(self)

    monkeypatch.setattr(Storage, "files", refused)
    ended, out, err = tango("cache", command, "--cache", "caches")
    assert ended == code, err
    assert said in out
    assert closed.name in out
    assert "may not be read by this user" in out


def test_verify_names_what_is_bad_and_why(tango, damaged):
    code, out, _ = tango("cache", "verify", "--cache", "caches")
    assert code == 1
    *lines, total = out.splitlines()
    reasons = {line.split(": ")[0]: line for line in lines}
    expected = ["is damaged", "checksum differs", f"holds the clip {key_of(4)}", "format is 7"]
    for number, reason in enumerate(expected):
        assert reason in reasons.pop(f"{damaged.name}/{key_of(number)}.parquet")
    assert not reasons
    assert total == "6 clips in 1 token cache(s) read, 4 bad file(s): --delete removes them"
    assert len(damaged.keys()) == 6
    (Path(damaged.storage.root) / "notes.parquet").write_text("not ours")
    assert tango("cache", "verify", "--cache", "caches", "--delete")[0] == 1
    assert damaged.keys() == {key_of(4), key_of(5), "notes"}


def test_verify_counts_clips_of_release_0_1_which_stay_good(tango, tmp_path):
    cache = fill(tmp_path / "caches", range(3))
    path = path_of(cache, 1)
    table = pq.read_table(path)
    (row,) = table.to_pylist()
    crc = zlib.crc32(np.array(row["indices"], np.int32).tobytes(), zlib.crc32(row["tokens"]))
    at = table.schema.get_field_index("checksum")
    pq.write_table(table.set_column(at, "checksum", [[f"crc32:{crc:08x}"]]), path)
    code, out, _ = tango("cache", "verify", "--cache", "caches")
    assert code == 0
    assert out.startswith("3 clips in 1 token cache(s) read")
    assert out.endswith("all good\n")


@pytest.mark.parametrize("manifest", [b'{"model":', b'{"model":{"name":"other"}}', None])
def test_verify_checks_the_manifest_and_a_job_writes_it_again(tango, tmp_path, manifest):
    cache = fill(tmp_path / "caches", range(2))
    fill(tmp_path / "caches", range(2), name="evs")
    cache.storage.delete("manifest.json")
    if manifest:
        cache.storage.write("manifest.json", manifest)
    code, out, _ = tango("cache", "verify", "--cache", "caches", "--delete")
    assert code == 1
    assert out.startswith(f"{cache.name}: manifest.json ")
    assert "4 clips in 2 token cache(s) read, 1 bad" in out
    cache.prepare()
    assert tango("cache", "verify", "--cache", "caches")[0] == 0


@pytest.fixture
def caches(tmp_path):
    """An old cache of three clips and a new one of four; the new ones' ages differ, too."""
    old = fill(tmp_path / "caches", range(3), days_old=40, name="evs")
    new = fill(tmp_path / "caches", range(2), days_old=20)
    fill(tmp_path / "caches", range(2, 4))
    return old, new


def test_gc_removes_old_caches_and_oldest_clips_only_with_yes(tango, caches):
    gc = ("cache", "gc", "--cache", "caches")
    before = [files_of(cache) for cache in caches]
    for option in ("--older-than", "30d"), ("--name", "*-evs-*"):
        code, out, _ = tango(*gc, *option)
        assert code == 0
        assert f"to remove: {caches[0].name}: 4 file(s), " in out
        assert caches[1].name not in out
        assert " would be freed; nothing was removed, --yes does it" in out
    assert [files_of(cache) for cache in caches] == before
    assert tango(*gc, "--older-than", "30d", "--name", "*-tango-*", "--yes")[1].endswith("remove\n")
    old = max(path_of(caches[0], number).stat().st_size for number in range(3))
    new = sum(path_of(caches[1], number).stat().st_size for number in range(4))
    limit = str(old + new)
    assert tango(*gc, "--max-size", limit, "--yes")[0] == 0
    assert (len(caches[0].keys()), len(caches[1].keys())) == (1, 4)
    assert tango(*gc, "--older-than", "30d", "--yes")[1].endswith(" freed\n")
    assert not Path(caches[0].storage.root).exists()


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
    assert not any(path.is_file() for path in (tmp_path / "caches").rglob("*"))


TANGO = build_method("tango", retention=0.25).compressor


@pytest.fixture
def features_and_tokens(tmp_path):
    """Features of three clips, an empty token cache beside them, and one of another model."""
    root = tmp_path / "caches"
    stored, tokens = filled(root, range(3)), token_cache(root, TANGO)
    fill(root, range(2))
    return stored, tokens


@pytest.mark.parametrize("in_shards", [False, True])
def test_materialized_token_sets_outlive_their_features(
    tango, tmp_path, features_and_tokens, in_shards
):
    stored, tokens = features_and_tokens
    if in_shards:
        assert tango("cache", "compact", "--cache", "caches")[0] == 0
    code, out, _ = tango("cache", "materialize", "--cache", "caches", tokens.name)
    assert code == 0
    assert f"{tokens.name}: 3 token sets computed from features" in out
    fill(tmp_path / "caches", range(1), name="evs").storage.write("manifest.json", b"{")
    code, out, _ = tango("cache", "materialize", "--cache", "caches")
    assert (code, f"{tokens.name}: 0 token sets computed from features" in out) == (1, True)
    (skipped,) = (line for line in out.splitlines() if "skipped" in line)
    assert skipped.count("-evs-") == 1
    shutil.rmtree(next((tmp_path / "caches").glob("*-evs-*")))
    tango("cache", "gc", "--cache", "caches", "--name", stored.name, "--yes")
    assert tango("cache", "verify", "--cache", "caches")[0] == 0
    assert tokens.keys() == {clip(n).key for n in range(3)}


def test_gc_removes_the_plans_of_earlier_releases(tango, features_and_tokens):
    _, tokens = features_and_tokens
    tokens.storage.write(f"{clip(1).key}-plan.parquet", b"of an earlier release")
    os.utime(tokens.storage.path(f"{clip(1).key}-plan.parquet"), (0, 0))
    assert tokens.keys() == set()
    assert tango("cache", "verify", "--cache", "caches")[0] == 0
    out = tango("cache", "gc", "--cache", "caches", "--yes")[1]
    assert "leftovers of killed writers or old releases" in out
    assert not tokens.storage.names(".parquet")


def test_export_gives_the_signals_of_features(tango, tmp_path, features_and_tokens):
    stored, _ = features_and_tokens
    key = clip(2).key
    assert tango("cache", "export", stored.name, "c", "--cache", "caches")[0] == 0
    clip_file = load_file(tmp_path / "c" / f"{key}.safetensors")
    assert clip_file["tokens"].equal(features(2).tokens)
    assert clip_file["keys"].equal(features(2).keys)
    options = ("--cache", "caches", "--format", "parquet")
    code, _, err = tango("cache", "export", stored.name, "d", *options)
    assert code == 2
    assert "holds features; export them with --format safetensors" in err
