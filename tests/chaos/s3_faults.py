"""What becomes of every operation on a store under every fault: `python -m tests.chaos.s3_faults`.

Runs against a real S3 server on loopback behind a proxy that makes the faults, and writes
`results/s3.md`. A result that begins with WRONG is one.
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from s3_server import Rule, S3Server, environment, s3_server, times

from pipeline.storage import Storage, objects
from pipeline.storage.copies import VideoCache, remote_fingerprint
from pipeline.storage.leases import Lease, LeaseError
from pipeline.storage.objects import ObjectStore, Patience

RESULTS = Path(__file__).parent / "results" / "s3.md"
PATIENCE = Patience(first_s=0.01, longest_s=0.05)
OLD, NEW = b"old", b"n" * 2_000_000


@dataclass(frozen=True)
class Place:
    """Where a case works."""

    server: S3Server
    store: ObjectStore
    path: str

    def beside(self) -> bytes:
        """What another reader sees, with no fault."""
        with self.server.with_rule(lambda request: None):
            return ObjectStore("s3").read(self.path)


Case = Callable[[Place], str]


def verdict(good: bool, text: str) -> str:
    """The text, or that it is not so."""
    return text if good else f"WRONG: not so: {text}"


def put(place: Place) -> str:
    place.store.write(place.path, NEW)
    return verdict(place.beside() == NEW, "written; readers saw the old object or the new one")


def put_given_up(place: Place) -> str:
    try:
        place.store.write(place.path, NEW)
    except OSError as error:
        return verdict(place.beside() == OLD, f"{type(error).__name__}; the old object is there")
    return "WRONG: no error"


def create(place: Place) -> str:
    path = f"{place.path}-new"
    place.store.create(path, b"mine")
    try:
        place.store.create(path, b"another's")
    except FileExistsError:
        good = ObjectStore("s3").read(path) == b"mine"
        return verdict(good, "created once; a second writer is refused")
    return "WRONG: created twice"


def get(place: Place) -> str:
    return verdict(place.store.read(place.path) == OLD, "read whole")


def get_given_up(place: Place) -> str:
    try:
        place.store.read(place.path)
    except OSError as error:
        return f"{type(error).__name__} in one line with the URL"
    return "WRONG: no error"


def download(place: Place) -> str:
    with tempfile.TemporaryDirectory() as folder:
        cache = VideoCache(folder, 1)
        url = f"s3://{place.path}"
        with cache.fetched(url, remote_fingerprint(url)) as local:
            return verdict(Path(local).read_bytes() == OLD, "fetched whole")


def download_given_up(place: Place) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            with VideoCache(folder, 1).fetched(f"s3://{place.path}", ""):
                return "WRONG: no error"
        except OSError as error:
            left = list(Path(folder).glob("??/*"))
            return verdict(not left, f"{type(error).__name__}; nothing is left in the cache")


def listing(place: Place) -> str:
    folder = place.path.rpartition("/")[0]
    return verdict([e.path for e in place.store.listing(folder)] == [place.path], "listed whole")


def delete(place: Place) -> str:
    place.store.delete(place.path)
    return verdict(place.store.stat(place.path) is None, "deleted")


def lease(place: Place) -> str:
    run = Storage(place.store, f"{place.path}-run")
    first, second = Lease(run), Lease(run)
    first.take()
    first.renew()
    try:
        second.take()
    except LeaseError:
        first.renew()
        return "taken and renewed; a second driver is refused"
    return "WRONG: two drivers"


def stolen(place: Place) -> str:
    run = Storage(place.store, f"{place.path}-run")
    first, thief = Lease(run), Lease(run)
    first.take()
    run.files()
    thief.take(steal=True)
    try:
        first.renew()
    except LeaseError:
        return "the robbed driver ends at its next renewal: no listing is asked"
    return "WRONG: two drivers"


def late_listing(place: Place) -> str:
    folder = place.path.rpartition("/")[0]
    before = len(place.store.listing(folder))
    place.store.write(f"{place.path}-later", NEW)
    seen = len(place.store.listing(folder))
    good = seen == before and place.store.read(f"{place.path}-later") == NEW
    return verdict(good, "a plan misses the clip and computes it again; reading it works")


def always(fault: str, kind: str) -> Rule:
    return lambda request: fault if request.kind == kind else None


CASES: list[tuple[str, str, Rule, Case]] = [
    ("PUT", "503, three times", times(3, "503", "PUT"), put),
    ("PUT", "connection refused, three times", times(3, "refused", "PUT"), put),
    ("PUT", "connection cut in the middle, twice", times(2, "cut request", "PUT"), put),
    ("PUT", "answer lost", times(1, "lost answer", "PUT"), put),
    ("PUT", "connection always cut in the middle", always("cut request", "PUT"), put_given_up),
    ("PUT", "503 for ever", always("503", "PUT"), put_given_up),
    ("create if absent", "503, three times", times(3, "503", "PUT"), create),
    ("create if absent", "answer lost", times(1, "lost answer", "PUT"), create),
    ("create if absent", "connection cut", times(2, "cut request", "PUT"), create),
    ("GET", "503, three times", times(3, "503", "GET"), get),
    ("GET", "answer cut in the middle, twice", times(2, "cut answer", "GET"), get),
    ("GET", "503 for ever", always("503", "GET"), get_given_up),
    ("GET", "silent for ever", always("slow", "GET"), get_given_up),
    ("fetch a video", "answer cut in the middle, twice", times(2, "cut answer", "GET"), download),
    ("fetch a video", "answer always cut", always("cut answer", "GET"), download_given_up),
    ("LIST", "503, three times", times(3, "503", "LIST"), listing),
    ("LIST", "listing lags behind", always("old listing", "LIST"), late_listing),
    ("DELETE", "503, three times", times(3, "503", "DELETE"), delete),
    ("DELETE", "answer lost", times(1, "lost answer", "DELETE"), delete),
    ("lease", "answers to PUT lost, three times", times(3, "lost answer", "PUT"), lease),
    ("lease", "503, three times", times(3, "503", "PUT"), lease),
    ("lease, stolen", "listing lags behind", always("old listing", "LIST"), stolen),
]


def rows(server: S3Server) -> Iterator[tuple[str, str, str]]:
    """Operation, fault and result of every case, one after the other."""
    import fsspec

    server.slow_s = 2.0
    for operation, fault, rule, case in CASES:
        silent = fault.startswith("silent")
        objects.READ_S = 0.5 if silent else 30.0
        store = ObjectStore("s3", replace(PATIENCE, tries=2) if silent else PATIENCE)
        bucket = f"bucket-{uuid.uuid4().hex[:10]}"
        fsspec.filesystem("s3").mkdir(bucket)
        store.write(f"{bucket}/folder/object", OLD)
        server.listings.clear()
        with server.with_rule(rule):
            try:
                result = case(Place(server, store, f"{bucket}/folder/object"))
            except Exception as error:
                result = f"WRONG: {type(error).__name__}: {error}"
        yield operation, fault, result
    objects.READ_S = 30.0


def main() -> None:
    """Run all cases, print them and write the table."""
    lines = [
        "# Faults of an object store",
        "",
        "`python -m tests.chaos.s3_faults`: a real S3 server on loopback behind a proxy that makes",
        "the faults. Pauses between tries are shortened.",
        "",
        "| operation | fault | result |",
        "|---|---|---|",
    ]
    with s3_server() as server:
        os.environ.update(environment(server.endpoint))
        for row in rows(server):
            lines.append(f"| {' | '.join(row)} |")
            print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
