"""One object store, on a real S3 server that fails as stores fail."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from s3_server import SECRET, times

from pipeline.storage.objects import ObjectStore, UnavailableError


@pytest.fixture
def store(server, patience):
    return ObjectStore("s3", patience)


def test_what_is_written_is_read_listed_and_removed(store, bucket):
    store.write(f"{bucket}/a/one", b"first")
    store.write(f"{bucket}/a/b/two", b"second")
    assert store.read(f"{bucket}/a/one") == b"first"
    assert store.read_range(f"{bucket}/a/b/two", 1, 4) == b"eco"
    entries = {entry.name: entry for entry in store.listing(f"{bucket}/a")}
    assert entries["one"].size == 5
    assert entries["one"].modified.tzinfo is not None
    assert not entries["b"].is_file
    assert [entry.path for entry in store.tree(f"{bucket}/a")] == [
        f"{bucket}/a/b/two",
        f"{bucket}/a/one",
    ]
    assert entries["one"].version == store.stat(f"{bucket}/a/one").version
    store.move(f"{bucket}/a/one", f"{bucket}/a/three")
    assert store.stat(f"{bucket}/a/one") is None
    store.delete(f"{bucket}/a/three")
    store.delete(f"{bucket}/a/three")
    assert store.listing(f"{bucket}/a/three") == []


def test_a_worker_opens_a_store_of_its_own_and_no_key_travels(store, bucket):
    store.write(f"{bucket}/a", b"x")
    sent = pickle.dumps(store)
    assert SECRET.encode() not in sent
    assert pickle.loads(sent).read(f"{bucket}/a") == b"x"


@pytest.mark.parametrize("fault", ["503", "refused"])
def test_what_fails_for_a_moment_is_repeated(store, bucket, server, fault):
    store.write(f"{bucket}/a/x", b"bytes")
    rules = [times(3, fault, kind) for kind in ("PUT", "GET", "HEAD", "LIST", "DELETE")]
    with server.with_rule(lambda request: next(filter(None, (r(request) for r in rules)), None)):
        store.write(f"{bucket}/a/y", b"more")
        assert store.read(f"{bucket}/a/y") == b"more"
        assert store.stat(f"{bucket}/a/x").size == 5
        assert [entry.name for entry in store.listing(f"{bucket}/a")] == ["x", "y"]
        store.delete(f"{bucket}/a/x")
    assert store.stat(f"{bucket}/a/x") is None


def test_a_store_that_stays_away_ends_in_one_line_with_the_url(store, bucket, server):
    with (
        server.with_rule(lambda request: "503"),
        pytest.raises(ConnectionError, match=rf"read s3://{bucket}/a: tried 6 times") as error,
    ):
        store.read(f"{bucket}/a")
    assert "\n" not in str(error.value)
    assert server.counts()["GET"] == 6


def test_a_cut_answer_is_read_again(store, bucket, server, tmp_path):
    data = bytes(range(256)) * 4000
    store.write(f"{bucket}/a", data)
    with server.with_rule(times(2, "cut answer", "GET")):
        assert store.read(f"{bucket}/a") == data
    with server.with_rule(times(2, "cut answer", "GET")):
        store.download(f"{bucket}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == data
    with server.with_rule(times(1, "cut answer", "GET")), store.opened(f"{bucket}/a") as file:
        file.seek(1000)
        assert file.read(500) == data[1000:1500]


def test_a_slow_answer_is_waited_for_and_a_silent_store_is_not(store, bucket, server, monkeypatch):
    store.write(f"{bucket}/a", b"x")
    with server.with_rule(times(1, "slow", "GET")):
        assert store.read(f"{bucket}/a") == b"x"
    # Now for longer than this process may stand still on a busy machine.
    monkeypatch.setattr(server, "slow_s", 600.0)
    # Another file system, because the limits are part of it.
    monkeypatch.setattr("pipeline.storage.objects.READ_S", 0.5)
    hasty = ObjectStore("s3", replace(store.patience, tries=2))
    with (
        server.with_rule(lambda request: "slow" if request.kind == "GET" else None),
        pytest.raises(UnavailableError, match="tried 2 times"),
    ):
        hasty.read(f"{bucket}/a")


def test_errors_say_what_is_missing_or_refused(store, bucket, server):
    with pytest.raises(FileNotFoundError, match=f"s3://{bucket}/never"):
        store.read(f"{bucket}/never")
    with pytest.raises(FileNotFoundError, match="s3://no-such-bucket-anywhere/x"):
        store.write("no-such-bucket-anywhere/x", b"")
