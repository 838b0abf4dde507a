"""`tango cache ...` on real caches, with right and wrong input."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from jobs.units import human_bytes, parse_age, parse_bytes
from pipeline.cache.fingerprint import clip_key
from pipeline.cache.tokens import ClipIdentity, Entry, TokenCache
from tango_core.types import CompressedVideo

DAY = 86400.0


def key_of(number):
    return clip_key(f"stat:{number}", None)


def fill(root, numbers, days_old=0.0, name="tango", **options):
    """A cache of small clips that were written some days ago."""
    identity = {
        "model": {"name": "tiny", "digest": "d", "frames": {"num_frames": 8}},
        "compressor": {"name": name, "retention": 0.25, **options},
    }
    cache = TokenCache(str(root), identity, f"tiny-8f-{name}-r0.25")
    cache.prepare()
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        video = CompressedVideo(
            torch.randn(3, 400, generator=generator),
            torch.tensor([0, 5, 7]),
            (2, 2, 3),
            torch.tensor([0.0, 0.5], dtype=torch.float64),
        )
        clip = ClipIdentity(key_of(number), f"video-{number}", None, f"stat:{number}")
        cache.write(clip, Entry(video, 1.0, 2.0, 3.0))
        written = time.time() - days_old * DAY
        os.utime(path_of(cache, number), (written, written))
    return cache


def path_of(cache, number):
    return Path(cache.storage.path(f"{key_of(number)}.parquet"))


def test_ls_says_what_each_cache_holds(tango, tmp_path):
    first = fill(tmp_path / "caches", range(2), alpha=1.5)
    second = fill(tmp_path / "caches", range(20), days_old=400, alpha=2.0)
    broken = fill(tmp_path / "caches", range(1), name="evs")
    broken.storage.write("manifest.json", b"{")
    (tmp_path / "caches" / "holidays").mkdir()
    for root in ("caches", f"file://{tmp_path}/caches"):
        code, out, _ = tango("cache", "ls", "--cache", root)
        assert code == 0
        lines = {line.split()[0]: line for line in out.splitlines() if "tiny-8f-" in line}
        assert lines.keys() == {first.name, second.name, broken.name}
        assert " tiny 8f  tango r=0.25 " in lines[first.name]
        assert " 3/12 (25.0 %) " in lines[first.name]
        assert lines[first.name].endswith("compressor.alpha=1.5")
        assert " 20 " in lines[second.name]
        assert "~3/12" in lines[second.name]
        assert f"{time.localtime(time.time() - 400 * DAY).tm_year}-" in lines[second.name]
        assert "manifest.json is damaged" in lines[broken.name]
        assert "3 token cache(s), 23 clips" in out


def test_ls_of_an_empty_directory_says_so(tango, tmp_path):
    (tmp_path / "caches").mkdir()
    code, out, _ = tango("cache", "ls", "--cache", "caches")
    assert (code, out) == (0, "no token caches in caches\n")


@pytest.fixture
def damaged(tmp_path):
    """A cache of six clips of which four are bad, each in another way."""
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


def test_verify_names_what_is_bad_and_why(tango, damaged):
    code, out, _ = tango("cache", "verify", "--cache", "caches")
    assert code == 1
    *lines, total = out.splitlines()
    reasons = {line.split(": ")[0]: line for line in lines}
    expected = ["cannot be read", "checksum differs", f"holds the clip {key_of(4)}", "format is 7"]
    for number, reason in enumerate(expected):
        assert reason in reasons.pop(f"{damaged.name}/{key_of(number)}.parquet")
    assert not reasons
    assert total == "6 clips in 1 token cache(s) read, 4 bad file(s): --delete removes them"
    assert len(damaged.keys()) == 6


def test_verify_makes_what_is_bad_a_miss(tango, damaged):
    (Path(damaged.storage.root) / "notes.parquet").write_text("not ours")
    assert tango("cache", "verify", "--cache", "caches", "--delete")[0] == 1
    assert damaged.keys() == {key_of(4), key_of(5), "notes"}
    code, out, _ = tango("cache", "verify", "--cache", "caches", damaged.name)
    assert (code, out) == (0, "2 clips in 1 token cache(s) read, all good\n")


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


def files_of(cache):
    return {path.name for path in Path(cache.storage.root).glob("*") if path.is_file()}


def test_gc_only_says_what_it_would_do(tango, caches):
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


def test_gc_leaves_alone_what_is_not_ours(tango, tmp_path, caches):
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
    assert f"left alone: {doubtful.name}: manifest.json holds other settings" in out


def test_gc_needs_times_for_ages_and_none_for_names(tango):
    identity = {"model": {"name": "m"}, "compressor": {"name": "tango"}}
    cache = TokenCache("memory://caches", identity, "m-tango")
    cache.prepare()
    code, _, err = tango("cache", "gc", "--cache", "memory://caches", "--older-than", "1h")
    assert code == 2
    assert "keeps no times" in err
    assert tango("cache", "gc", "--cache", "memory://caches", "--name", "m-*", "--yes")[0] == 0
    assert cache.storage.files() == []


@pytest.mark.parametrize("form", ["safetensors", "parquet"])
def test_export_leaves_bad_clips_out_and_says_so(tango, tmp_path, damaged, form):
    options = ("--cache", "caches", "--format", form)
    code, out, _ = tango("cache", "export", damaged.name, "out", *options)
    assert code == 1
    assert out.count("left out: ") == 4
    assert f"{key_of(1)}.parquet: is damaged (checksum differs)" in out
    assert out.splitlines()[-1] == "2 clips written to out, 4 left out"
    assert (tmp_path / "out" / "manifest.json").read_text() == damaged.manifest
    code, _, err = tango("cache", "export", damaged.name, "out", *options)
    assert code == 2
    assert "out is not empty; name a new directory" in err


def test_compact_says_what_went_where_and_what_stays(tango, tmp_path, damaged):
    code, out, _ = tango("cache", "compact", "--cache", "caches", damaged.name)
    assert code == 1
    assert out.count(f"stays: {damaged.name}/") == 4
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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ls"], "--cache runs/cache: no such directory"),
        (["ls", "--cache", "caches/{name}"], "is one token cache"),
        (["ls", "--cache", "nonsense://x"], "cannot open 'nonsense://x'"),
        (["verify", "--cache", "caches", "tiny-*", "big-*"], "no token cache in caches is called"),
        (["gc", "--cache", "caches", "--older-than", "30"], "--older-than '30' is no age"),
        (["gc", "--cache", "caches", "--max-size", "much"], "--max-size 'much' is no size"),
        (["gc", "--cache", "caches", "--name", "big"], "no token cache in caches is called 'big'"),
        (["export", "big", "out", "--cache", "caches"], "no token cache in caches is called 'big'"),
        (["export", "*", "out", "--cache", "caches"], "'*' stands for several token caches"),
        (["export", "*-evs-*", "out", "--cache", "caches"], "cannot be exported: manifest.json"),
        (["compact", "--cache", "caches", "big"], "no token cache in caches is called 'big'"),
        (["compact", "--cache", "nowhere"], "--cache nowhere: no such directory"),
        (["gc", "--cache", "nowhere"], "--cache nowhere: no such directory"),
        (["verify", "--cache", "nowhere"], "--cache nowhere: no such directory"),
    ],
)
def test_a_mistake_ends_in_one_line(tango, tmp_path, arguments, expected):
    name = fill(tmp_path / "caches", range(1)).name
    fill(tmp_path / "caches", range(1), name="evs").storage.write("manifest.json", b"[]")
    code, _, err = tango("cache", *(word.format(name=name) for word in arguments))
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1, err


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("50GB", 50e9), ("1.5 TiB", 1.5 * 2**40), ("10k", 10_000), ("7MB", 7e6)],
)
def test_sizes_are_read_as_people_write_them(text, num_bytes):
    assert parse_bytes(text, "--max-size") == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5 apples", "1iB", "1e3"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"--max-size .* is no size"):
        parse_bytes(text, "--max-size")


@pytest.mark.parametrize("text", ["", "30", "30x", "-1d", "d", "1" * 40 + "w"])
def test_what_is_no_age_is_refused(text):
    with pytest.raises(ValueError, match=r"--older-than .* is no age"):
        parse_age(text, "--older-than")


def test_ages_are_read_as_people_write_them():
    ages = [parse_age(text, "--older-than").total_seconds() for text in ("36h", "1.5d", "2 W")]
    assert ages == [1.5 * DAY, 1.5 * DAY, 14 * DAY]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (31_449, "31.4 kB"), (999_999, "1.0 MB"), (123e9, "123 GB")],
)
def test_sizes_are_shown_with_three_digits(num_bytes, text):
    assert human_bytes(num_bytes) == text
