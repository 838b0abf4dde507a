"""Operations on a store under every fault, which a proxy before a real S3 server makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from s3_server import new_bucket, s3_of_this_process, times

from pipeline.storage import Storage, objects
from pipeline.storage.copies import VideoCache, remote_fingerprint
from pipeline.storage.leases import Lease, LeaseError
from pipeline.storage.objects import ObjectStore, Patience

PATIENCE = Patience(first_s=0.01, longest_s=0.05)
OLD, NEW = b"old", b"n" * 2_000_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    with s3_of_this_process() as server:
        server.slow_s = 2.0
        yield server


def beside(server, path):
    """What another reader sees, without a fault."""
    with server.with_rule(lambda request: None):
        return ObjectStore("s3").read(path)


def put(server, store, path):
    store.write(path, NEW)
    assert beside(server, path) == NEW


def put_given_up(server, store, path):
    with pytest.raises(OSError, match="s3://"):
        store.write(path, NEW)
    assert beside(server, path) == OLD


def create(server, store, path):
    store.create(f"{path}-new", b"mine")
    with pytest.raises(FileExistsError):
        store.create(f"{path}-new", b"another's")
    assert beside(server, f"{path}-new") == b"mine"


def get(server, store, path):
    assert store.read(path) == OLD


def get_given_up(server, store, path):
    with pytest.raises(OSError, match="s3://"):
        store.read(path)


def download(server, store, path, folder):
    url = f"s3://{path}"
    with VideoCache(folder, 1).fetched(url, remote_fingerprint(url)) as local:
        assert Path(local).read_bytes() == OLD


def download_given_up(server, store, path, folder):
    with pytest.raises(OSError, match="s3://"), VideoCache(folder, 1).fetched(f"s3://{path}", ""):
        pass
    assert not list(folder.glob("??/*")), "nothing is left in the cache"


def listing(server, store, path):
    assert [entry.path for entry in store.listing(path.rpartition("/")[0])] == [path]


def late_listing(server, store, path):
    folder = path.rpartition("/")[0]
    before = len(store.listing(folder))
    store.write(f"{path}-later", NEW)
    assert len(store.listing(folder)) == before, "a plan misses the clip"
    assert store.read(f"{path}-later") == NEW


def delete(server, store, path):
    store.delete(path)
    assert store.stat(path) is None


def lease(server, store, path):
    run = Storage(store, f"{path}-run")
    first, second = Lease(run), Lease(run)
    first.take()
    first.renew()
    with pytest.raises(LeaseError):
        second.take()
    first.renew()


def stolen(server, store, path):
    run = Storage(store, f"{path}-run")
    first, thief = Lease(run), Lease(run)
    first.take()
    run.files()
    thief.take(steal=True)
    with pytest.raises(LeaseError):
        first.renew()


@pytest.mark.parametrize(
    ("operation", "count", "fault", "kind"),
    [
        (put, 3, "503", "PUT"),
        (put, 3, "refused", "PUT"),
        (put, 2, "cut request", "PUT"),
        (put, 1, "lost answer", "PUT"),
        (put_given_up, 10**6, "cut request", "PUT"),
        (put_given_up, 10**6, "503", "PUT"),
        (create, 3, "503", "PUT"),
        (create, 1, "lost answer", "PUT"),
        (create, 2, "cut request", "PUT"),
        (get, 3, "503", "GET"),
        (get, 2, "cut answer", "GET"),
        (get_given_up, 10**6, "503", "GET"),
        (get_given_up, 10**6, "slow", "GET"),
        (download, 2, "cut answer", "GET"),
        (download_given_up, 10**6, "cut answer", "GET"),
        (listing, 3, "503", "LIST"),
        (late_listing, 10**6, "old listing", "LIST"),
        (delete, 3, "503", "DELETE"),
        (delete, 1, "lost answer", "DELETE"),
        (lease, 3, "lost answer", "PUT"),
        (lease, 3, "503", "PUT"),
        (stolen, 10**6, "old listing", "LIST"),
    ],
)
def test_no_operation_ends_wrong(server, monkeypatch, tmp_path, operation, count, fault, kind):
    patience = PATIENCE
    if fault == "slow":
        monkeypatch.setattr(objects, "READ_S", 0.5)
        patience = replace(PATIENCE, tries=2)
    store, path = ObjectStore("s3", patience), f"{new_bucket(server)}/folder/object"
    store.write(path, OLD)
    server.listings.clear()
    folder = (tmp_path,) if operation in (download, download_given_up) else ()
    with server.with_rule(times(count, fault, kind)):
        operation(server, store, path, *folder)
