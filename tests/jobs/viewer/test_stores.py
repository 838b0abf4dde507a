"""Runs whose directory, caches and outputs are in an object store."""

from __future__ import annotations

import shutil

import pytest
from s3_server import new_bucket, s3_of_this_process
from viewed_runs import CELLS, write_viewed_run

from jobs.viewer.command import opened
from pipeline.storage.objects import ObjectStore
from pipeline.storage.urls import place


@pytest.fixture
def bucket():
    """The name of an empty bucket of a server on this machine."""
    with s3_of_this_process() as server:
        yield new_bucket(server)


def everything(run, cache=None):
    """What the viewer shows of the first three clips."""
    with opened([run], cache) as pages:
        columns = range(len(CELLS))
        tokens = [pages.all_tokens(clip, columns, lambda *_: ([], None)) for clip in range(3)]
        return [pages.clip(clip)["questions"] for clip in range(3)], tokens


def test_a_run_in_a_store_equals_the_run_on_disk(tmp_path, bucket):
    run = write_viewed_run(tmp_path)
    store = ObjectStore("s3")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            store.write(f"{bucket}/jobs/{path.relative_to(tmp_path).as_posix()}", path.read_bytes())
    here = everything(run)
    assert sum("sets" in one for clip in here[1] for one in clip.values()) == 2 * len(CELLS)
    url = place(f"s3://{bucket}/jobs/run")
    assert everything(url, f"s3://{bucket}/jobs/cache") == here
    shutil.rmtree(tmp_path / "cache")  # which the run names; the store has one beside the run
    assert everything(url) == here
