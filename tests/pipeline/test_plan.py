"""Which clip is missing in which cache."""

import pytest

from pipeline.cache.directory import TokenCache
from pipeline.cache.names import source_fingerprint
from pipeline.clips import Pools
from pipeline.plan import plan_clips
from pipeline.resources.pools import ActorPool, preflight
from pipeline.settings import AutoPools, Work, pools_for, suggest_pools
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


def test_an_id_that_comes_twice_is_refused(items, caches):
    with pytest.raises(ValueError, match="video '0' twice"):
        plan_clips([*items, items[0]], caches)


ALL = ("decode", "compress", "answer")
CLUSTERS = {
    "a small machine": [{"CPU": 2.0}],
    "one CPU": [{"CPU": 1.0}],
    "a workstation": [{"CPU": 16.0, "GPU": 1.0}],
    "a node": [{"CPU": 64.0, "GPU": 8.0}],
    "few CPUs beside GPUs": [{"CPU": 4.0, "GPU": 4.0}],
    "many small nodes": [{"CPU": 4.0}] * 5,
    "GPUs apart from CPUs": [{"CPU": 32.0}, {"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 2.0}],
    "odd CPUs": [{"CPU": 3.0}, {"CPU": 1.0}, {"CPU": 0.0}],
}


def work(decode=1.0, compress=1.0, answer=1.0, num_clips=1000, **more):
    seconds = {"decode": decode, "compress": compress, "answer": answer}
    return Work({name: one for name, one in seconds.items() if one}, num_clips, **more)


@pytest.mark.parametrize("nodes", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("answer", [0, 0.1, 1, 50])
def test_what_is_suggested_fits(nodes, answer):
    wanted = work(answer=answer)
    preflight(suggest_pools(nodes, wanted), nodes, list(wanted.seconds))


def test_gpus_go_where_the_work_is():
    pools = suggest_pools([{"CPU": 64.0, "GPU": 8.0}], work(compress=1, answer=3))
    assert (pools.compress, pools.answer) == (ActorPool(2, 1, 1), ActorPool(6, 1, 1))


def test_one_gpu_is_shared_by_both_models():
    pools = suggest_pools([{"CPU": 16.0, "GPU": 1.0}], work(answer=30))
    assert (pools.compress.num_gpus, pools.answer.num_gpus) == (0.5, 0.5)
    alone = suggest_pools([{"CPU": 16.0, "GPU": 1.0}], work(answer=0))
    assert alone.compress.num_gpus == 1


def test_cpus_go_where_the_work_is():
    pools = suggest_pools([{"CPU": 16.0}], work(decode=1, compress=1, answer=6))
    assert (pools.compress.least, pools.answer.least) == (2, 12)


def test_only_pools_that_are_to_be_chosen_are_chosen():
    nodes = [{"CPU": 64.0, "GPU": 8.0}]
    own = Pools(answer=ActorPool(3))
    assert pools_for(own, nodes) is own
    assert pools_for(AutoPools(work=work()), nodes) == suggest_pools(nodes, work())
