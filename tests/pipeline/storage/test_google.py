"""`gs://` on an emulator: what differs from S3 is versions, conditions and the store's clock."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import fsspec
import pytest
from gcp_storage_emulator.server import create_server
from loopback import serving
from s3_server import Request, S3Server, times

from pipeline.storage import Storage
from pipeline.storage.copies import VideoCache, remote_fingerprint
from pipeline.storage.leases import Lease, LeaseError
from pipeline.storage.objects import ObjectStore


class _WithConditions(S3Server):
    """Passes a request on if its condition holds."""

    def forward(self, request: Request, body: bytes) -> tuple[int, list, bytes]:
        parts = urlsplit(request.path)
        wanted = parse_qs(parts.query).get("ifGenerationMatch")
        if request.method == "POST" and wanted and "/upload/" in parts.path:
            bucket = parts.path.split("/b/")[1].split("/")[0]
            (name,) = re.findall(rb'"name": ?"([^"]+)"', body)[:1]  # in a part of its own
            path = f"/storage/v1/b/{bucket}/o/{quote(name.decode(), safe='')}"
            status, _, data = super().forward(Request("GET", path, {}), b"")
            if (str(json.loads(data)["generation"]) if status == 200 else "0") != wanted[0]:
                error = {"error": {"code": 412, "message": "conditionNotMet"}}
                return 412, [("Content-Type", "application/json")], json.dumps(error).encode()
        return super().forward(request, body)


BUCKET = "tango-test"


@pytest.fixture
def server(monkeypatch):
    """An emulator with one bucket, behind a proxy that adds conditions, which it ignores."""
    emulator = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    emulator.start()
    # The emulator writes one request after the other, and so does the condition hold.
    state = _WithConditions(emulator._api._httpd.server_address[:2])
    with serving(state.handle) as (state.endpoint,):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", state.endpoint)
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield state
        fsspec.get_filesystem_class("gs").clear_instance_cache()
    emulator.stop()


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
