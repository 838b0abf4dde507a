"""Annotations of a store on a disk: the listing, and the content of tables alone."""

from __future__ import annotations

import pytest

from pipeline.cache.names import SourceMissingError
from pipeline.plan import Sources
from pipeline.storage.copies import VideoCache, local_copy, mirrored, remote_fingerprint
from pipeline.storage.objects import ObjectStore
from pipeline.storage.urls import Url
from tango_core.benchmarks import build_benchmark


@pytest.fixture
def release(bucket):
    store = ObjectStore("s3")
    table = "video,question,A,B,answer\n"
    for name in ("one.mp4", "sub/two.mp4"):
        store.write(f"{bucket}/mine/{name}", name.encode() * 100)
        table += f"{name},What?,yes,no,A\n"
    store.write(f"{bucket}/mine/questions.csv", table.encode())
    return Url(f"s3://{bucket}/mine")


def test_a_benchmark_opens_a_mirror_and_its_clips_are_urls(server, release, tmp_path):
    server.requests.clear()
    mirror = mirrored(release, tmp_path)
    counts = server.counts()
    assert (counts["LIST"], counts["GET"]) == (1, 1)
    items = list(build_benchmark("custom", root=str(mirror.root)).items())
    urls = [mirror.url_of(item.path) for item in items]
    assert urls == [f"{release}/one.mp4", f"{release}/sub/two.mp4"]
    assert (mirror.folder / "one.mp4").stat().st_size == 0
    sources = Sources((mirror,), VideoCache(str(tmp_path), 1))
    server.requests.clear()
    assert sources(urls[1], False) == remote_fingerprint(urls[1])
    assert server.counts()["HEAD"] == 1  # of `remote_fingerprint`; the listing knew it


def test_markers_of_folders_and_objects_named_like_folders_are_left_out(bucket, release, tmp_path):
    """What a console's "Create folder" writes, and `sub` beside `sub/two.mp4`."""
    store = ObjectStore("s3")
    for marker in ("mine/", "mine/sub/", "mine/empty/", "mine/sub/deep/"):
        store.fs.call_s3("put_object", Bucket=bucket, Key=marker, Body=b"")
    store.write(f"{bucket}/mine/sub", b"an object")
    mirror = mirrored(release, tmp_path)
    items = list(build_benchmark("custom", root=str(mirror.root)).items())
    urls = [mirror.url_of(item.path) for item in items]
    assert urls == [f"{release}/one.mp4", f"{release}/sub/two.mp4"]
    with local_copy(release, wanted=lambda name: name.endswith("two.mp4")) as copy:
        assert [path.name for path in copy.rglob("*.mp4")] == ["two.mp4"]


def test_frames_and_single_urls_are_identified_by_listings(server, bucket, release, tmp_path):
    store = ObjectStore("s3")
    for number in range(12):
        store.write(f"{bucket}/mine/frames/{number:02}.png", b"png")
    mirror = mirrored(release, tmp_path)
    frames = f"{release}/frames"
    assert mirror.fingerprint(frames) == remote_fingerprint(frames)
    sources = Sources((), VideoCache(str(tmp_path), 1))
    server.requests.clear()
    for number in range(12):
        sources(f"{frames}/{number:02}.png", False)
    assert server.counts() == {"HEAD": 8, "LIST": 1}
    with pytest.raises(SourceMissingError):
        sources(f"{release}/gone.mp4", False)
