"""`gs://` on an emulator: what differs from S3 is versions, conditions and the store's clock."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from gcs_server import gcs_server
from s3_server import times

from pipeline.storage import Storage
from pipeline.storage.copies import VideoCache, remote_fingerprint
from pipeline.storage.leases import Lease, LeaseError
from pipeline.storage.objects import ObjectStore

BUCKET = "tango-test"


@pytest.fixture
def server(monkeypatch):
    with gcs_server(BUCKET) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield server
        fsspec.get_filesystem_class("gs").clear_instance_cache()


def test_a_bucket_holds_files_a_lease_and_videos(server, patience, tmp_path):
    store = ObjectStore("gs", patience)
    with server.with_rule(times(2, "503", "POST")):
        store.write(f"{BUCKET}/a/one", b"first")
    assert store.read(f"{BUCKET}/a/one") == b"first"
    assert store.read_range(f"{BUCKET}/a/one", 1, 3) == b"ir"
    assert [(e.name, e.size) for e in store.listing(f"{BUCKET}/a")] == [("one", 5)]
    assert store.stat(f"{BUCKET}/a/two") is None
    with server.with_rule(times(1, "lost answer", "POST")):
        store.create(f"{BUCKET}/a/two", b"mine")
    with pytest.raises(FileExistsError):
        store.create(f"{BUCKET}/a/two", b"another's")
    assert store.read(f"{BUCKET}/a/two") == b"mine"
    assert 0 <= store.age_s(f"{BUCKET}/a/two") < 600
    first = Lease(Storage(store, f"{BUCKET}/run"))
    first.take()
    first.renew()
    with pytest.raises(LeaseError):
        Lease(Storage(store, f"{BUCKET}/run")).take()
    first.release()
    url = f"gs://{BUCKET}/a/one"
    with VideoCache(str(tmp_path), 1).fetched(url, remote_fingerprint(url)) as path:
        assert Path(path).read_bytes() == b"first"
    store.delete(f"{BUCKET}/a/one")
    store.delete(f"{BUCKET}/a/one")
    assert store.tree(f"{BUCKET}/a")[0].path == f"{BUCKET}/a/two"
