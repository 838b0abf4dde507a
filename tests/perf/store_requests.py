"""Requests of a plan when a cache is in an object store: `python -m tests.perf.store_requests`.

Counted at a real S3 server on loopback. The objects are put into the server directly: only their
listing, the footers of the shards and the index are read by a plan.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

from s3_server import S3Server, environment, s3_server

from pipeline.cache.compact import MAX_CLIPS
from pipeline.cache.directory import TokenCache
from pipeline.cache.fingerprint import digest
from pipeline.cache.shards import KEYS, hash_of, shard_name, write_index

RESULTS = Path(__file__).parent / "results" / "store_requests.md"


def measure(server: S3Server, clips: int, kind: str) -> tuple[dict[str, int], float]:
    """Requests by kind, and seconds, of `TokenCache.keys` on a cache of some clips."""
    import fsspec
    from moto.s3.models import s3_backends

    bucket = f"bucket-{uuid.uuid4().hex[:10]}"
    fsspec.filesystem("s3").mkdir(bucket)
    cache = TokenCache(f"s3://{bucket}/cache", {"of": kind}, "m-tango")
    folder = f"cache/{cache.name}"
    backend = s3_backends["123456789012"]["aws"]
    keys = [digest(str(number), 20) for number in range(clips)]
    shards: dict[str, tuple[str, ...]] = {}
    if kind == "single":
        for key in keys:
            backend.put_object(bucket, f"{folder}/{key}.parquet", b"x")
    else:
        for start in range(0, clips, MAX_CLIPS):
            name, own = shard_name(datetime.now(UTC)), keys[start : start + MAX_CLIPS]
            shards[name] = tuple(own)
            backend.put_object(bucket, f"{folder}/{name}", _shard(own, small=kind == "index"))
    if kind == "index":
        write_index(cache.storage, shards, hash_of(cache.storage))
    server.requests.clear()
    started = time.perf_counter()
    assert cache.keys() == set(keys)
    return dict(server.counts()), time.perf_counter() - started


def _shard(keys: list[str], *, small: bool) -> bytes:
    """A file with as many row groups as keys; one with an index is not opened by a plan."""
    if small:
        return b"x"
    sink, table = io.BytesIO(), pa.table({"key": ["x"]})
    with pq.ParquetWriter(sink, table.schema) as writer:
        for _ in keys:
            writer.write_table(table)
        writer.add_key_value_metadata({KEYS: json.dumps(keys)})
    return sink.getvalue()


def main() -> None:
    """Measure, print and write the table."""
    lines = [
        "# Requests of a plan, one cache in an object store",
        "",
        "`python -m tests.perf.store_requests`, at a real S3 server on loopback.",
        "",
        "| clips | state of the cache | LIST | HEAD | GET | all | seconds |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    names = {
        "single": "a file per clip, before compaction",
        "shards": "shards, no index",
        "index": "shards with their index, as `compact` leaves it",
    }
    with s3_server() as server:
        os.environ.update(environment(server.endpoint))
        cases = [(10_000, "single"), (10_000, "shards"), (10_000, "index"), (1_000_000, "index")]
        for clips, kind in cases:
            counts, seconds = measure(server, clips, kind)
            kinds = " | ".join(str(counts.get(name, 0)) for name in ("LIST", "HEAD", "GET"))
            total = sum(counts.values())
            lines.append(f"| {clips:,} | {names[kind]} | {kinds} | {total} | {seconds:.1f} |")
            print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
