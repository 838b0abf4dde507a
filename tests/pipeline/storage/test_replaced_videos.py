"""Videos of a store that are identified by their bytes, and replaced while a job runs."""

from __future__ import annotations

import functools

import pytest
from clips import clip

from pipeline.cache.names import source_fingerprint
from pipeline.plan import Sources, plan_clips
from pipeline.rows import clips_in
from pipeline.stages.decode import decode_video
from pipeline.storage.copies import ChangedError, VideoCache
from pipeline.storage.objects import ObjectStore
from tango_core.types import VideoItem
from tango_core.video import FrameSpec

decode = functools.partial(
    decode_video, spec=FrameSpec(4, size=(32, 64)), timeout_s=120, memory_gib=4
)
SAID = "has been replaced since the job was planned; --resume plans it again"


@pytest.fixture
def put(bucket):
    """`put(name)` writes a video, always to one place, and returns its URL."""

    def write(name: str) -> str:
        ObjectStore("s3").write(f"{bucket}/video.mp4", clip(name).read_bytes())
        return f"s3://{bucket}/video.mp4"

    return write


def planned(url: str, videos: VideoCache) -> dict:
    items = [("custom", VideoItem("v", url))]
    (row,) = clips_in(plan_clips(items, {}, hash_content=True, identify=Sources((), videos)))
    return row


def kept(videos: VideoCache) -> list:
    return list(videos._root.glob("??/*"))


def test_a_node_that_planned_fetches_a_video_once(server, put, tmp_path):
    videos, url = VideoCache(str(tmp_path), 1), put("closed_gop.mp4")
    server.requests.clear()
    row = planned(url, videos)
    assert row.source_fingerprint == source_fingerprint(str(clip("closed_gop.mp4")), True)
    assert decode(row, videos=videos).status == "ok"
    assert server.counts()["GET"] == 1
    assert len(kept(videos)) == 1


def test_a_replaced_video_is_not_decoded_under_the_key_of_the_old_one(put, tmp_path):
    here, there = (VideoCache(str(tmp_path / name), 1) for name in ("here", "there"))
    row = planned(put("closed_gop.mp4"), here)
    url = put("vp9.webm")
    result = decode(row, videos=there)
    assert (result.status, result.frames) == ("decode_failed", None)
    assert result.error == f"decode: {url} {SAID}"
    assert result.store_fault is None
    assert kept(there) == []
    assert decode(row, videos=here).status == "ok"  # this node has what was planned
    again = planned(url, there)
    assert again.clip_key != row.clip_key
    assert decode(again, videos=there).status == "ok"


def test_one_that_is_replaced_while_it_is_planned_has_one_version(put, tmp_path):
    videos, url = VideoCache(str(tmp_path), 1), put("closed_gop.mp4")
    sources = Sources((), videos)
    sources(url, False)
    put("vp9.webm")
    with pytest.raises(ChangedError, match=SAID):
        sources(url, True)
