"""Which clip is missing in which cache."""

import pytest

from pipeline.cache.directory import TokenCache
from pipeline.cache.fingerprint import source_fingerprint
from pipeline.plan import plan_clips
from tango_core.types import VideoItem


@pytest.fixture
def caches(tmp_path):
    """Three empty caches by name."""
    found = (TokenCache(str(tmp_path / "cache"), {"n": index}, f"c{index}") for index in range(3))
    return {cache.name: cache for cache in found}


@pytest.fixture
def items(tmp_path):
    """Four clips; the file of the third is gone."""
    for index in (0, 1, 3):
        (tmp_path / f"{index}.mp4").write_bytes(b"video")
    return [("custom", VideoItem(f"{n}", str(tmp_path / f"{n}.mp4"))) for n in range(4)]


def missing_in(plan):
    return [row["missing"] for row in plan.select(["missing"]).to_pylist()]


@pytest.mark.parametrize("chunk", [1, 3, 10_000])
def test_every_clip_is_looked_up_in_every_cache(items, caches, monkeypatch, chunk):
    monkeypatch.setattr("pipeline.plan._ROWS_PER_CHUNK", chunk)
    first, second, third = caches
    keys = plan_clips(items, {})["clip_key"].to_pylist()
    caches[first].storage.write(f"{keys[0]}.parquet", b"entry")
    caches[third].storage.write(f"{keys[0]}.parquet", b"entry")
    caches[second].storage.write(f"{keys[3]}.parquet", b"entry")
    plan = plan_clips(items, caches)
    assert missing_in(plan) == [[second], [first, second, third], [], [first, third]]
    assert plan["status"].to_pylist() == ["ok", "ok", "decode_failed", "ok"]
    again = plan_clips(items, caches, recompute=True)
    assert missing_in(again) == [[*caches], [*caches], [], [*caches]]


def test_a_file_of_many_clips_is_identified_once(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"video")
    of_one = [VideoItem(f"{n}", str(tmp_path / "a.mp4"), (n, n + 1.0)) for n in range(5)]
    asked = []

    def identify(path, hash_content):
        asked.append(path)
        return source_fingerprint(path, hash_content)

    plan = plan_clips([("custom", item) for item in of_one], {}, identify=identify)
    assert len({*plan["clip_key"].to_pylist()}) == 5
    assert len(asked) == 1


def test_a_plan_without_clips_or_without_caches_is_empty(items, caches):
    assert plan_clips([], caches).num_rows == 0
    assert missing_in(plan_clips(items, {})) == [[], [], [], []]


def test_an_id_that_comes_twice_is_refused(items, caches):
    with pytest.raises(ValueError, match="video '0' twice"):
        plan_clips([*items, items[0]], caches)
