"""Videos of a store on a node: fetched once, bounded, whole, of the version that was planned."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from pipeline.storage.copies import ChangedError, VideoCache, remote_fingerprint
from pipeline.storage.objects import ObjectStore

MIB = 2**20


@pytest.fixture
def put(bucket):
    """`put(name, size)` writes a video and returns its URL and fingerprint."""

    def write(name: str, size: int = 1000, byte: bytes = b"v") -> tuple[str, str]:
        ObjectStore("s3").write(f"{bucket}/videos/{name}", byte * size)
        url = f"s3://{bucket}/videos/{name}"
        return url, remote_fingerprint(url)

    return write


def files(root: Path) -> list[Path]:
    """Everything that takes room."""
    return list(root.glob("??/*"))


def fetch(cache: VideoCache, url: str, fingerprint: str) -> bytes:
    with cache.fetched(url, fingerprint) as path:
        return Path(path).read_bytes()


def test_a_replaced_video_is_another_one(put, tmp_path):
    cache = VideoCache(str(tmp_path), 1)
    url, old = put("a.mp4")
    assert fetch(cache, url, old) == b"v" * 1000
    _, new = put("a.mp4", byte=b"w")
    assert new != old
    assert fetch(cache, url, new) == b"w" * 1000
    other = VideoCache(str(tmp_path / "other"), 1)
    with pytest.raises(ChangedError, match=r"a\.mp4 has been replaced since the job was planned"):
        fetch(other, url, old)
    assert not files(tmp_path / "other")


def test_what_was_used_longest_ago_makes_room(server, put, tmp_path):
    cache = VideoCache(str(tmp_path), 3 * MIB / 2**30)
    videos = [put(f"{name}.mp4", MIB) for name in "abc"]
    for number, video in enumerate(videos):
        fetch(cache, *video)
        for path in files(tmp_path):
            if path.stat().st_mtime > 1000:
                os.utime(path, (number, number))
    fetch(cache, *videos[0])  # the one of b is now the oldest
    fetch(cache, *put("d.mp4", MIB))
    assert sum(path.stat().st_size for path in files(tmp_path)) == 3 * MIB
    server.requests.clear()
    fetch(cache, *videos[0])
    assert server.counts()["GET"] == 0
    fetch(cache, *videos[1])
    assert server.counts()["GET"] == 1


def test_a_video_that_is_read_is_not_removed(put, tmp_path):
    cache = VideoCache(str(tmp_path), 2 * MIB / 2**30)
    first = put("a.mp4", MIB)
    with cache.fetched(*first) as path:
        os.utime(path, (0, 0))
        fetch(cache, *put("b.mp4", MIB))
        fetch(cache, *put("c.mp4", MIB))
        assert Path(path).stat().st_size == MIB


def test_one_that_can_never_fit_names_the_setting(put, tmp_path):
    cache = VideoCache(str(tmp_path), MIB / 2**30)
    with pytest.raises(OSError, match="raise --video-cache-gib") as error:
        fetch(cache, *put("a.mp4", 2 * MIB))
    assert "\n" not in str(error.value)
    assert not files(tmp_path)


def test_what_a_killed_process_left_half_is_fetched_again(put, tmp_path):
    cache, video = VideoCache(str(tmp_path), 1), put("a.mp4")
    fetch(cache, *video)
    (whole,) = files(tmp_path)
    half = whole.with_name(f"{whole.name}.half")
    whole.rename(half)
    half.write_bytes(b"half")
    whole.with_name(f"{whole.name}.room").write_bytes(b"")
    assert fetch(cache, *video) == b"v" * 1000
    assert files(tmp_path) == [whole]


def _fetch_all(root: str, videos: list[tuple[str, str]], wrong: multiprocessing.Queue) -> None:
    cache = VideoCache(root, 2.5 * MIB / 2**30)
    for url, version in videos:
        content = fetch(cache, url, version)
        if content != url[-5:-4].encode() * MIB:
            wrong.put(url)
    wrong.put(None)


@pytest.mark.slow
def test_several_processes_share_one_small_directory(put, tmp_path):
    videos = [put(f"{name}.mp4", MIB, name.encode()) for name in "abcd"]
    context = multiprocessing.get_context("spawn")
    wrong = context.Queue()
    order = [videos[i:] + videos[:i] for i in range(3)]
    workers = [context.Process(target=_fetch_all, args=(str(tmp_path), o, wrong)) for o in order]
    for worker in workers:
        worker.start()
    found = [wrong.get(timeout=200) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert found == [None, None, None]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 2.5 * MIB
