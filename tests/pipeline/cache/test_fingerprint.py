import os

import pytest

from pipeline.cache.fingerprint import (
    SourceMissingError,
    canonical_json,
    clip_key,
    source_fingerprint,
)


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"12345")
    return path


def test_a_replaced_file_is_another_source(video):
    before = source_fingerprint(str(video))
    assert source_fingerprint(str(video)) == before
    video.write_bytes(b"54321")
    os.utime(video, ns=(1, 1))
    assert source_fingerprint(str(video)) != before


def test_two_files_of_equal_size_and_time_are_two_sources(video, tmp_path):
    other = tmp_path / "b.mp4"
    other.write_bytes(b"67890")
    for path in (video, other):
        os.utime(path, ns=(7, 7))
    assert source_fingerprint(str(video)) != source_fingerprint(str(other))


def test_content_hash_ignores_place_and_time_and_sees_the_bytes(video, tmp_path):
    copy = tmp_path / "copy.mp4"
    copy.write_bytes(video.read_bytes())
    os.utime(copy, ns=(1, 1))
    same = source_fingerprint(str(video), hash_content=True)
    assert source_fingerprint(str(copy), hash_content=True) == same
    copy.write_bytes(b"12346")
    assert source_fingerprint(str(copy), hash_content=True) != same


def test_a_folder_of_frames_changes_with_any_of_its_frames(tmp_path):
    for index in range(3):
        (tmp_path / f"{index:05d}.jpg").write_bytes(b"frame")
    before = source_fingerprint(str(tmp_path), hash_content=True)
    (tmp_path / "00001.jpg").write_bytes(b"other")
    assert source_fingerprint(str(tmp_path), hash_content=True) != before


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SourceMissingError, match=r"gone\.mp4: No such file"):
        source_fingerprint(str(tmp_path / "gone.mp4"))


@pytest.mark.parametrize("name", ["x" * 300, "nul\0byte", "lone\udc80surrogate"])
def test_a_name_that_no_file_can_have_is_a_missing_file(tmp_path, name):
    with pytest.raises(SourceMissingError):
        source_fingerprint(f"{tmp_path}/{name}")


def test_two_clips_of_one_file_never_collide():
    keys = {clip_key("f", clip) for clip in (None, (0.0, 1.0), (0.0, 1.5), (0.5, 1.0))}
    assert len(keys) == 4
    assert clip_key("f", (0, 1)) == clip_key("f", (0.0, 1.0))
    assert clip_key("f", None) != clip_key("g", None)


def test_canonical_json_does_not_depend_on_the_order_of_keys():
    assert canonical_json({"b": 1, "a": {"d": 2, "c": 3}}) == '{"a":{"c":3,"d":2},"b":1}'
