"""`tango cache ...` on real caches, with right and wrong input."""

from __future__ import annotations

import os
import time
from pathlib import Path

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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ls"], "--cache runs/cache: no such directory"),
        (["ls", "--cache", "caches/{name}"], "is one token cache"),
        (["ls", "--cache", "nonsense://x"], "cannot open 'nonsense://x'"),
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
