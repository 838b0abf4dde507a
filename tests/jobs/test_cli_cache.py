"""`tango cache ...` on real caches, with right and wrong input."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from jobs.units import human_bytes, parse_age, parse_bytes
from pipeline.cache import ClipIdentity, Entry, TokenCache
from pipeline.fingerprint import clip_key
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
    assert total == "6 clips in 1 token cache(s) read, 4 bad: --delete removes them"
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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ls"], "--cache runs/cache: no such directory"),
        (["ls", "--cache", "caches/{name}"], "is one token cache"),
        (["ls", "--cache", "nonsense://x"], "cannot open 'nonsense://x'"),
        (["verify", "--cache", "caches", "tiny-*", "big-*"], "no token cache in caches is called"),
        (["verify", "--cache", "nowhere"], "--cache nowhere: no such directory"),
    ],
)
def test_a_mistake_ends_in_one_line(tango, tmp_path, arguments, expected):
    name = fill(tmp_path / "caches", range(1)).name
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
